"""Measures a trained network: its loss on held-out text and its induction heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pathexpand.train.curriculum import Stream, Tokens, with_bos
from pathexpand.train.network import Network
from pathexpand.train.tokenizer import BOS_ID

PERIOD = 60
SMOOTHING = 10.0
ROWS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Induction:
    """Holds what a network does on BOS, random tokens, and the same tokens again.

    Losses are in nats a token. `repeat` leaves out the first token of the repeat, which no earlier
    copy foretells. Attention is the mean over rows and queries, (layer, head): `previous` to the
    token before, `after_copy` from a repeated token to the token after its earlier copy.
    """

    first: float
    repeat: float
    previous: list[list[float]]
    after_copy: list[list[float]]


def text_losses(network: Network, streams: Sequence[Stream], *, rows: int) -> dict[str, float]:
    """Return the mean loss on held-out text, in nats a token: per corpus and for the mix."""
    losses = {}
    for stream in streams:
        tokens = held_out_rows(stream, rows=rows, length=network.shape.n_ctx)  # (row, 1 + position)
        with torch.inference_mode():
            parts = torch.split(torch.from_numpy(tokens), ROWS_AT_ONCE)
            losses[stream.name] = torch.cat([network.losses(part) for part in parts]).mean().item()
    return with_mix(losses, streams)


def held_out_rows(stream: Stream, *, rows: int, length: int) -> Tokens:
    """Cut evenly spaced rows from the held-out text, (row, 1 + length)."""
    starts = np.linspace(0, len(stream.held_out) - length, rows).astype(int)
    return np.stack([with_bos(stream.held_out[s : s + length]) for s in starts])


def with_mix(losses: dict[str, float], streams: Sequence[Stream]) -> dict[str, float]:
    """Add the mean over corpora, each by its weight in the mix."""
    total = sum(stream.weight for stream in streams)
    mix = sum(stream.weight * losses[stream.name] for stream in streams) / total
    return {**losses, "mix": mix}


def induction(network: Network, *, rows: int, seed: int) -> Induction:
    """Measure the network on BOS, 60 random tokens, and the same 60 again."""
    generator = np.random.default_rng(seed)
    half = generator.integers(BOS_ID + 1, network.shape.d_vocab, size=(rows, PERIOD))
    bos = np.full((rows, 1), BOS_ID)
    tokens = np.concatenate([bos, half, half], axis=1)  # (row, 1 + 2 * PERIOD)
    with torch.inference_mode():
        parts = torch.split(torch.from_numpy(tokens), ROWS_AT_ONCE)
        losses = torch.cat([network.losses(part) for part in parts])  # (row, position)
        return Induction(
            first=losses[:, :PERIOD].mean().item(),
            repeat=losses[:, PERIOD + 1 :].mean().item(),
            previous=mean_attention(network, tokens, back=1, first_key=0),
            # Queries start at the repeat: the earlier copy of its first token is at position 1.
            after_copy=mean_attention(network, tokens, back=PERIOD - 1, first_key=2),
        )


def mean_attention(
    network: Network, tokens: Tokens, *, back: int, first_key: int
) -> list[list[float]]:
    """Return the mean attention to the key `back` positions before the query, (layer, head)."""
    if not network.shape.n_layers:
        return []
    parts = torch.split(torch.from_numpy(tokens), ROWS_AT_ONCE)
    patterns = torch.cat([network.patterns(part) for part in parts], dim=1)  # (l, r, h, q, k)
    along = patterns.diagonal(-back, dim1=-2, dim2=-1)  # (layer, row, head, key)
    means: list[list[float]] = along[..., first_key:].mean(dim=(1, 3)).tolist()  # (layer, head)
    return means


def bigram_losses(
    streams: Sequence[Stream], *, vocabulary: int, rows: int, length: int
) -> dict[str, float]:
    """Return the held-out losses of a smoothed bigram model of the training text.

    Each corpus counts by its weight in the mix. The bigram counts are smoothed with `SMOOTHING`
    draws from the unigram distribution.
    """
    table = dense_bigram_table(streams, vocabulary=vocabulary)  # (d_vocab, d_vocab)
    losses = {}
    for stream in streams:
        tokens = held_out_rows(stream, rows=rows, length=length)  # (row, 1 + position)
        losses[stream.name] = float(-np.log(table[tokens[:, :-1], tokens[:, 1:]]).mean())
    return with_mix(losses, streams)


def dense_bigram_table(streams: Sequence[Stream], *, vocabulary: int) -> NDArray[np.float64]:
    """Return the dense table of p(next token | token), (d_vocab, d_vocab)."""
    tokens = sum(len(stream.training) for stream in streams)
    totals = np.zeros(vocabulary * vocabulary)  # (d_vocab * d_vocab,)
    for stream in streams:
        pairs = stream.training[:-1] * vocabulary + stream.training[1:]  # (pair,)
        scale = stream.weight * tokens / len(stream.training)
        totals += scale * np.bincount(pairs, minlength=len(totals))
    counts = totals.reshape(vocabulary, vocabulary)  # (d_vocab, d_vocab)
    unigram = (counts.sum(axis=0) + 1) / (counts.sum() + vocabulary)  # (d_vocab,)
    smoothed: NDArray[np.float64] = (counts + SMOOTHING * unigram) / (
        counts.sum(axis=1, keepdims=True) + SMOOTHING
    )  # (d_vocab, d_vocab)
    return smoothed
