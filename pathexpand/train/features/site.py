"""Where in a model features stand: on the stream before a layer, or at every layer's MLP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathexpand.errors import ModelError
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.train.features.dictionary import Dictionary
from pathexpand.train.features.files import (
    read_sae,
    read_transcoders,
    sae_files,
    transcoder_files,
)
from pathexpand.train.features.measure import constant, mean_loss, quality
from pathexpand.train.features.passing import Replace, Tokens, check_form
from pathexpand.train.features.rows import Rows, mlp_rows, stream_rows

Found = dict[str, float | int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Site(ABC):
    """Holds a model and the layers at which features stand."""

    checkpoint: Checkpoint
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse layers that are not there, and models of another form; raises `ModelError`."""
        n_layers = self.checkpoint.config.n_layers
        if not self.layers:
            raise ModelError("model", wanted="at least one layer", got="none")
        for layer in self.layers:
            if not 0 <= layer < n_layers:
                raise ModelError("layer", wanted=f"0 to {n_layers - 1}", got=str(layer))
        check_form(self.checkpoint)

    @abstractmethod
    def rows(self, tokens: Tokens, dtype: type[np.floating] = np.float32) -> tuple[Rows, ...]:
        """Give, for each layer, what features read and stand for on texts (batch, position)."""

    @abstractmethod
    def loss(
        self,
        tokens: Tokens,
        replaced: Mapping[int, Replace],
        dtype: type[np.floating] = np.float32,
    ) -> float:
        """Give the model's loss in nats a token, with what stands at some layers replaced."""

    @abstractmethod
    def files(self, features: Sequence[Dictionary]) -> dict[str, bytes]:
        """Give the files that hold features, by name."""

    @abstractmethod
    def read(self, directory: Path) -> tuple[Dictionary, ...]:
        """Read the features that stand in a directory, as float64."""


class StreamSite(Site):
    """The stream before one layer: an SAE stands there."""

    def rows(self, tokens: Tokens, dtype: type[np.floating] = np.float32) -> tuple[Rows, ...]:
        """Give the stream at every position, as what is read and what is written."""
        return tuple(
            stream_rows(self.checkpoint, tokens, layer, dtype=dtype) for layer in self.layers
        )

    def loss(
        self,
        tokens: Tokens,
        replaced: Mapping[int, Replace],
        dtype: type[np.floating] = np.float32,
    ) -> float:
        """Give the loss with the stream replaced."""
        return mean_loss(self.checkpoint, tokens, streams=replaced, dtype=dtype)

    def files(self, features: Sequence[Dictionary]) -> dict[str, bytes]:
        """Give the files of the one SAE."""
        (one,), (layer,) = features, self.layers
        config = self.checkpoint.config
        hook = f"blocks.{layer}.hook_resid_pre"
        return sae_files(one, model=config.model_name, hook=hook, context=config.n_ctx)

    def read(self, directory: Path) -> tuple[Dictionary, ...]:
        """Read the one SAE."""
        return (read_sae(directory),)


class MlpSite(Site):
    """The MLP of every layer: a transcoder stands in each one's place."""

    def rows(self, tokens: Tokens, dtype: type[np.floating] = np.float32) -> tuple[Rows, ...]:
        """Give what each MLP reads and writes at every position."""
        return mlp_rows(self.checkpoint, tokens, dtype=dtype)

    def loss(
        self,
        tokens: Tokens,
        replaced: Mapping[int, Replace],
        dtype: type[np.floating] = np.float32,
    ) -> float:
        """Give the loss with some MLPs replaced."""
        return mean_loss(self.checkpoint, tokens, mlps=replaced, dtype=dtype)

    def files(self, features: Sequence[Dictionary]) -> dict[str, bytes]:
        """Give the files of all transcoders."""
        return transcoder_files(tuple(features), model=self.checkpoint.config.model_name)

    def read(self, directory: Path) -> tuple[Dictionary, ...]:
        """Read a transcoder for every layer."""
        return read_transcoders(directory, n_layers=len(self.layers))


def measured(
    site: Site,
    features: Sequence[Dictionary],
    tokens: Tokens,
    dtype: type[np.floating] = np.float32,
) -> dict[str, object]:
    """Measure features on texts (batch, position): each layer alone, and all layers at once.

    `spliced` is the loss with the features' output in place of the model's own, `mean` the loss
    with the mean of the model's own there, `own` the loss of the model as it is; nats a token.
    """
    used = [each.cast(dtype) for each in features]
    layers: list[Found] = []
    means = {}
    for layer, each, rows in zip(site.layers, used, site.rows(tokens, dtype), strict=True):
        means[layer] = constant(rows.writes.mean(axis=0, dtype=np.float64))
        found = quality(each, rows)
        layers.append(
            {
                "layer": layer,
                "fvu": found.fvu,
                "l0": found.l0,
                "dead": found.dead,
                "spliced": site.loss(tokens, {layer: each}, dtype),
                "mean": site.loss(tokens, {layer: means[layer]}, dtype),
            }
        )
    return {
        "positions": tokens.size,
        "own": site.loss(tokens, {}, dtype),
        "spliced": site.loss(tokens, dict(zip(site.layers, used, strict=True)), dtype),
        "mean": site.loss(tokens, means, dtype),
        "layers": layers,
    }
