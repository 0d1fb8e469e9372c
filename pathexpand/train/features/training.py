"""Trains features and writes them with their card, or measures trained ones again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
import torch

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.model.checkpoint import Checkpoint, read_checkpoint
from pathexpand.model.prompt import read_prompt, start_token
from pathexpand.train.corpus import Corpus, read_corpora
from pathexpand.train.curriculum import Curriculum, Stream
from pathexpand.train.features.card import card
from pathexpand.train.features.dictionary import Dictionary
from pathexpand.train.features.fit import BETAS, Plan, fit
from pathexpand.train.features.merge import alike, merged, mergings, rounded
from pathexpand.train.features.passing import Tokens, sample
from pathexpand.train.features.site import MlpSite, Site, StreamSite, measured
from pathexpand.train.measure import held_out_rows
from pathexpand.train.record import CARD, RECORD, Record, as_json, read_record, write
from pathexpand.train.training import described, versions

Texts = Mapping[str, Tokens]
# From a seed: where features stand, the text to train on, those to measure on, and what to say.
Made = Callable[[int], tuple[Site, Tokens, Texts, Record]]

REPEATS = 0.1  # the share of repeated random tokens that the embedded models ended on
STREAM_TEXTS = 4096
MEASURED_TEXTS = 256
SAMPLED_TEXTS = 1024
SAMPLED_LENGTH = 255
HELD_OUT_SEED = 1  # beside the seed of the training: another draw

PROBES = {
    "sae": (
        "def first(items, default=None):\n"
        "    for item in items:\n"
        "        if item is not None:\n"
        "            return item\n"
        "    return default\n"
        "\n"
        "And the king said unto him, Where is thy brother?\n"
    ),
    "transcoders": (
        "Once upon a time, there was a little girl named Lily. She had a red ball. One day, the "
        "ball rolled away and Lily was sad. Her dog ran and found the ball. Lily was happy and "
        "gave the dog a big hug."
    ),
}


def on_texts(*, model: str, layer: int, shakespeare: Path, bible: Path) -> Made:
    """Prepare features on the stream before a layer, on the embedded models' texts."""

    def made(seed: int) -> tuple[Site, Tokens, Texts, Record]:
        checkpoint = read_checkpoint(model)
        site = StreamSite(checkpoint=checkpoint, layers=(layer,))
        corpora = read_corpora(shakespeare=shakespeare, bible=bible)
        streams = streams_of(checkpoint, corpora)
        length = checkpoint.config.n_ctx - 1
        curriculum = Curriculum(
            streams=streams, rows=STREAM_TEXTS, length=length, vocabulary=checkpoint.config.d_vocab
        )
        generator = np.random.default_rng([seed, HELD_OUT_SEED])
        texts = held_out(streams, length=length)
        texts["repeated"] = np.stack(
            [curriculum.repeated_row(generator) for _ in range(MEASURED_TEXTS // 4)]
        )  # (row, 1 + length)
        about = {"corpora": described(corpora, streams), "repeats": REPEATS, "length": length}
        return site, curriculum.batch(REPEATS, generator), texts, about

    return made


def on_own_text(*, model: str, origin: str, licence: str) -> Made:
    """Prepare features for the MLP of every layer, on text that the model itself writes."""

    def made(seed: int) -> tuple[Site, Tokens, Texts, Record]:
        checkpoint = read_checkpoint(model)
        site = MlpSite(checkpoint=checkpoint, layers=tuple(range(checkpoint.config.n_layers)))
        start = start_token(checkpoint)
        if start is None:
            raise ModelError("model", wanted="a start token to draw text from", got="none")
        length = min(SAMPLED_LENGTH, checkpoint.config.n_ctx - 1)
        about = {
            "origin": origin,
            "licence": licence,
            "texts": SAMPLED_TEXTS,
            "held_out_texts": MEASURED_TEXTS,
            "length": length,
        }
        drawn, unseen = (
            sample(checkpoint, start=start, rows=rows, length=length, seed=[seed, draw])
            for draw, rows in enumerate((SAMPLED_TEXTS, MEASURED_TEXTS))
        )
        return site, drawn, {"sampled": unseen}, about

    return made


def told(
    kind: str,
    made: Made,
    *,
    out: Path,
    features: int,
    active: int,
    steps: int,
    seed: int,
    report_every: int,
    measure_only: bool,
    skip: bool = False,
) -> None:
    """Do the work of a command, and tell errors in one line."""
    # Sums are cut up by thread: with one thread the same seed gives the same features.
    torch.set_num_threads(1)
    try:
        plan = Plan(n_features=features, active=active, steps=steps, skip=skip)
        site, drawn, texts, about = made(seed)
        if measure_only:
            record = read_record(out)
        else:
            record = new_record(kind, site, plan, about, seed=seed)
            out.mkdir(parents=True, exist_ok=True)
            fitted = trained(site, drawn, plan, record, seed=seed, report_every=report_every)
            found = zip(site.layers, mergings(fitted), strict=True)
            record["merged"] = [{"layer": layer, **asdict(each)} for layer, each in found]
            for name, content in site.files(merged(fitted)).items():
                write(out / name, content)
        stored = site.read(out)
        pairs = zip(site.layers, stored, strict=True)
        record["alike"] = [{"layer": layer, **alike(each)} for layer, each in pairs]
        record["measured"] = {name: measured(site, stored, text) for name, text in texts.items()}
        record["probe"] = probed(site, stored, PROBES[kind])
        write(out / RECORD, as_json(record).encode())
        write(out / CARD, card(record).encode())
    except (PathExpandError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def trained(
    site: Site, drawn: Tokens, plan: Plan, record: Record, *, seed: int, report_every: int
) -> tuple[Dictionary, ...]:
    """Train the features of every layer, one layer after the other, and tell of it.

    They come rounded as they will be stored: only then is seen which are the same.
    """
    fitted = []
    for layer, rows in zip(site.layers, site.rows(drawn), strict=True):
        for progress, features in fit(rows, plan, seed=seed, report_every=report_every):
            record["curve"].append({"layer": layer, **asdict(progress)})
            click.echo(json.dumps(record["curve"][-1]))
            latest = features
        fitted.append(rounded(latest))
    return tuple(fitted)


def streams_of(checkpoint: Checkpoint, corpora: Sequence[Corpus]) -> tuple[Stream, ...]:
    """Encode every corpus with the model's own tokenizer."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise ModelError("model", wanted="a tokenizer", got="none")

    def encoded(texts: Sequence[str]) -> Tokens:
        return np.concatenate([np.array(tokenizer.encode(text)) for text in texts])  # (token,)

    return tuple(
        Stream(
            name=corpus.name,
            weight=corpus.weight,
            training=encoded(corpus.training),
            held_out=encoded(corpus.held_out),
        )
        for corpus in corpora
    )


def held_out(streams: Sequence[Stream], *, length: int) -> dict[str, Tokens]:
    """Cut texts from each corpus's held-out documents, and mix them by weight."""
    cut = {
        stream.name: held_out_rows(stream, rows=int(MEASURED_TEXTS * stream.weight), length=length)
        for stream in streams
    }
    return {**cut, "mix": np.concatenate(list(cut.values()))}


def new_record(kind: str, site: Site, plan: Plan, about: Record, *, seed: int) -> Record:
    """Return the record of a training that has not begun."""
    config = site.checkpoint.config
    return {
        "kind": kind,
        "model": {
            "name": config.model_name,
            "sha256": site.checkpoint.digest(),
            "n_layers": config.n_layers,
            "d_model": config.d_model,
        },
        "layers": list(site.layers),
        "settings": {"seed": seed, "betas": list(BETAS), **asdict(plan)},
        "starts": "distinct",
        "text": about,
        "versions": versions(),
        "curve": [],
    }


def probed(site: Site, features: Sequence[Dictionary], text: str) -> Record:
    """Measure features on one short text, in float64: numbers that anyone can check."""
    tokens = read_prompt(site.checkpoint, text).ids[None]  # (1, position)
    return {"text": text, "tokens": tokens[0].tolist()} | measured(
        site, features, tokens, np.float64
    )
