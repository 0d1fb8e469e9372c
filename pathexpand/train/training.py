"""Trains a model, or measures a trained one again."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np
import torch
from tokenizers import Tokenizer

from pathexpand.errors import FileError, PathExpandError
from pathexpand.train.card import card
from pathexpand.train.corpus import Corpus, read_corpora
from pathexpand.train.curriculum import Curriculum, Share, Stream, Tokens
from pathexpand.train.fit import BETAS, CLIP, WEIGHT_DECAY, Progress, Stage, fit
from pathexpand.train.measure import bigram_losses, induction, text_losses
from pathexpand.train.network import Network, Shape, draw_network
from pathexpand.train.record import (
    CARD,
    RECORD,
    Record,
    as_json,
    read_network,
    read_record,
    write,
    write_network,
)
from pathexpand.train.tokenizer import train_tokenizer

ROWS = 32
MEASURED_ROWS = 256
MEASURED_SEED = 1

NO_REPEATS = Share(first=0.0, last=0.0)
FALLING = Share(first=1 / 2, last=1 / 10)


def train(
    *,
    layers: int,
    out: Path,
    shakespeare: Path,
    bible: Path,
    steps: int | None,
    seed: int,
    report_every: int,
    measure_only: bool,
) -> None:
    """Train a model, or measure it again, and write all its files; exit with 2 for bad input."""
    # Sums are cut up by thread: with one thread the same seed gives the same weights.
    torch.set_num_threads(1)
    shape = Shape(n_layers=layers)
    stages = shipped_stages(layers) if steps is None else (one_stage(layers, steps),)
    try:
        corpora = read_corpora(shakespeare=shakespeare, bible=bible)
        tokenizer, streams = tokenized(corpora, vocabulary=shape.d_vocab)
        texts = described(corpora, streams)
        if measure_only:
            record = read_record(out)
            check_same_texts(record["corpora"], texts)
        else:
            curriculum = Curriculum(
                streams=streams, rows=ROWS, length=shape.n_ctx, vocabulary=shape.d_vocab
            )
            record = new_record(curriculum, stages, seed=seed)
            out.mkdir(parents=True, exist_ok=True)
            for progress, network in trained(
                shape, curriculum, stages, seed=seed, report_every=report_every
            ):
                record["curve"].append(point(progress, network, streams))
                click.echo(json.dumps(record["curve"][-1]))
                write_network(out, network, tokenizer)
                write(out / RECORD, as_json({**record, "corpora": texts}).encode())
        record["corpora"] = texts
        record["measured"] = measured(read_network(out, shape), streams)
        write(out / RECORD, as_json(record).encode())
        write(out / CARD, card(shape, record).encode())
    except (PathExpandError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def trained(
    shape: Shape,
    curriculum: Curriculum,
    stages: Sequence[Stage],
    *,
    seed: int,
    report_every: int,
) -> Iterator[tuple[Progress, Network]]:
    """Train stage by stage, and yield the network as it is stored at every report.

    A later stage starts from the weights as they are stored, with a fresh optimiser: it can be
    run again from the files alone.
    """
    network = draw_network(shape, seed=seed)
    done = Progress(step=0, tokens=0, seconds=0.0, loss=0.0)
    for index, stage in enumerate(stages):
        draws = [seed, index] if index else seed
        before = done
        for progress in fit(network, curriculum, stage, seed=draws, report_every=report_every):
            done = progress.after(before)
            yield done, network.rounded()
        network = network.rounded().trainable()


def shipped_stages(layers: int) -> tuple[Stage, ...]:
    """Return the stages that the shipped models were trained in."""
    if layers == 0:
        return (one_stage(layers, 3906),)
    if layers == 1:
        return (one_stage(layers, 3418),)
    return (
        replace(one_stage(layers, 10742), steps=3500),
        Stage(
            steps=2000, planned=2000, warm_up=50, rate=2e-3, share=Share(first=1 / 4, last=1 / 10)
        ),
    )


def one_stage(layers: int, steps: int) -> Stage:
    """Return a whole training in one stage: on text alone where there is no attention."""
    share = FALLING if layers else NO_REPEATS
    return Stage(steps=steps, planned=steps, warm_up=200, rate=3e-3, share=share)


def tokenized(
    corpora: Sequence[Corpus], *, vocabulary: int
) -> tuple[Tokenizer, tuple[Stream, ...]]:
    """Train the tokenizer on the training text, and encode every corpus with it."""
    texts = (text for corpus in corpora for text in corpus.training)
    tokenizer = train_tokenizer(texts, vocabulary=vocabulary)
    streams = tuple(
        Stream(
            name=corpus.name,
            weight=corpus.weight,
            training=encoded(corpus.training, tokenizer),
            held_out=encoded(corpus.held_out, tokenizer),
        )
        for corpus in corpora
    )
    return tokenizer, streams


def encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Tokens:
    """Encode documents and join them, (token,)."""
    return np.concatenate([np.array(found.ids) for found in tokenizer.encode_batch(list(texts))])


def new_record(curriculum: Curriculum, stages: Sequence[Stage], *, seed: int) -> Record:
    """Return the record of a training that has not begun."""
    return {
        "settings": {
            "seed": seed,
            "rows": curriculum.rows,
            "length": curriculum.length,
            "betas": list(BETAS),
            "weight_decay": WEIGHT_DECAY,
            "clip": CLIP,
        },
        "stages": [asdict(stage) for stage in stages],
        "versions": versions(),
        "curve": [],
    }


def versions() -> Record:
    """Return the versions that the result depends on."""
    packages = ("torch", "numpy", "tokenizers")
    return {"CPython": platform.python_version()} | {name: version(name) for name in packages}


def described(corpora: Sequence[Corpus], streams: Sequence[Stream]) -> list[Record]:
    """Return what was read: amounts, licences, digests."""
    return [
        {
            "name": corpus.name,
            "origin": corpus.origin,
            "licence": corpus.licence,
            "weight": corpus.weight,
            "documents": len(corpus.documents),
            "held_out_documents": len(corpus.held_out),
            "bytes": corpus.size,
            "sha256": corpus.digest,
            "tokens": len(stream.training),
            "held_out_tokens": len(stream.held_out),
        }
        for corpus, stream in zip(corpora, streams, strict=True)
    ]


def check_same_texts(trained: Sequence[Record], found: Sequence[Record]) -> None:
    """Refuse to measure a model on other texts than it was trained on."""
    for before, now in zip(trained, found, strict=True):
        if before["sha256"] != now["sha256"]:
            raise FileError(
                f"corpus {now['name']}",
                wanted=f"{before['origin']}, SHA-256 {before['sha256']}",
                got=now["sha256"],
                remedy="read the text that the model was trained on",
            )


def point(progress: Progress, network: Network, streams: Sequence[Stream]) -> Record:
    """Return one point of the learning curve, on a part of the held-out rows."""
    found = induction(network, rows=MEASURED_ROWS // 8, seed=MEASURED_SEED)
    return {
        **asdict(progress),
        "text": text_losses(network, streams, rows=MEASURED_ROWS // 4),
        "first": found.first,
        "repeat": found.repeat,
    }


def measured(network: Network, streams: Sequence[Stream]) -> Record:
    """Return all that the model card says of the finished model."""
    return {
        "rows": MEASURED_ROWS,
        "text": text_losses(network, streams, rows=MEASURED_ROWS),
        "bigram": bigram_losses(
            streams,
            vocabulary=network.shape.d_vocab,
            rows=MEASURED_ROWS,
            length=network.shape.n_ctx,
        ),
        "induction": asdict(induction(network, rows=MEASURED_ROWS, seed=MEASURED_SEED)),
    }
