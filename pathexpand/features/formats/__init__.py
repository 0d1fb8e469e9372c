"""The formats that features are stored in: a table of rules, chosen by files or by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from pathexpand.errors import FileError, ModelError, PathExpandError
from pathexpand.features.formats import (
    circuit_tracer,
    gemma_scope,
    llama_scope,
    pickled,
    sae_lens,
    sparsify,
)
from pathexpand.features.formats.given import Given
from pathexpand.features.unit import Hook, UnitSet
from pathexpand.model.shown import FILE_ROOM, cut, shown

_EMBEDDED = FilePath(__file__).parents[2] / "embedded"
_DEEPEST = 4  # folders below the one that is named


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the files that one of its folders holds, by pattern, and how they are read.

    Of a mark that is a tuple any one will do. Two formats may have the same files; then the caller
    has to name one. `takes` are the options of `load_units` that its files do not answer.
    """

    name: str
    marks: tuple[str | tuple[str, ...], ...]
    load: Callable[[list[FilePath], Given], UnitSet]
    takes: tuple[str, ...] = ()

    def is_in(self, folder: FilePath) -> bool:
        """Say whether a folder holds the files of the format."""
        return all(
            any(
                next(folder.glob(one), None) for one in ((mark,) if isinstance(mark, str) else mark)
            )
            for mark in self.marks
        )


_PLACE = ("layer", "hook_in", "hook_out")
FORMATS = (
    Format("circuit-tracer", ("config.yaml",), circuit_tracer.load),
    Format("gemma-scope-transcoder", ("params.npz",), gemma_scope.load_transcoders, _PLACE),
    Format("gemma-scope-sae", ("params.npz",), gemma_scope.load_saes, ("layer", "hook_in")),
    Format(
        "gemma-scope-2",
        ("config.json", ("params.safetensors", "params_layer_*.safetensors")),
        gemma_scope.load_2,
    ),
    Format("sae-lens", ("cfg.json", sae_lens.WEIGHTS), sae_lens.load, ("input_scale",)),
    Format("sparsify", ("cfg.json", sparsify.WEIGHTS), sparsify.load, _PLACE),
    Format("llamascopium", ("config.json", llama_scope.WEIGHTS), llama_scope.load),
    Format(
        "llama-scope",
        ("hyperparams.json", "checkpoints/final.safetensors"),
        llama_scope.load_first,
    ),
    Format(
        "dictionary-learning",
        ("config.json", pickled.DICTIONARY),
        pickled.load_dictionary,
        ("layer", "hook_in"),
    ),
    Format("transcoder-circuits", (pickled.TRANSCODER,), pickled.load_transcoder, _PLACE),
)


def load_units(
    directory_or_file: str | FilePath,
    *,
    format: str | None = None,
    layer: int | None = None,
    hook_in: Hook | None = None,
    hook_out: Hook | None = None,
    input_scale: float | None = None,
) -> UnitSet:
    """Read the features in a directory: one unit, or one a folder below it, or a whole set.

    An embedded model's name stands for the features that come with it, a file for the directory it
    is in. The format is known by its files, or named by `format`. `layer`, `hook_in`, `hook_out`
    and `input_scale` (what inputs are multiplied by on average) tell what some formats' files do
    not say. Matrices stay on the disk until their rows are asked for. Raises `FileError` or
    `ModelError`.
    """
    place = _place(directory_or_file)
    given = Given(layer, hook_in, hook_out, input_scale)
    found = list(_found(place, _named(format)))
    names = list(dict.fromkeys(each.name for each, _ in found))
    if not names:
        _refuse_none(place, format)
    if len(names) > 1:
        remedy = f"give format= as {' or '.join(names)}"
        raise FileError(
            f"{place}",
            wanted="features of one format",
            got="files of several formats",
            remedy=remedy,
        )
    chosen = found[0][0]
    _check_taken(chosen, given, place)
    try:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # found by each unit
            units = chosen.load([folder for _, folder in found], given)
    except ModelError as error:
        if str(place) in error.subject:
            raise
        subject = f"{place}, {error.subject}"
        raise ModelError(
            subject, wanted=error.wanted, got=error.got, remedy=error.remedy
        ) from error
    return replace(units, name=_set_name(directory_or_file, place))


def _set_name(given: str | FilePath, place: FilePath) -> str:
    """Name a set after the directory the caller gave, not after a folder below it."""
    is_embedded = given == FilePath(given).name and _EMBEDDED / given in (place, place.parent)
    return str(given) if is_embedded else place.resolve().name or str(place)


def _check_taken(chosen: Format, given: Given, place: FilePath) -> None:
    """Refuse options that would be passed over: the files say it themselves."""
    for option in fields(given):
        if getattr(given, option.name) is not None and option.name not in chosen.takes:
            remedy = f"files of {chosen.name} say it themselves"
            raise FileError(f"{place}", wanted=f"no {option.name}", got="one", remedy=remedy)


def _place(given: Any) -> FilePath:
    wanted = "a directory of features, or a file in one"
    if not isinstance(given, str | FilePath) or not str(given):
        raise FileError("features", wanted=wanted, got=shown(given))
    own = _EMBEDDED / str(given)
    if given == own.name and own.is_dir():  # "./two-layer" is a folder here
        return own / "features" if (own / "features").is_dir() else own
    place = FilePath(given)
    if place.suffix in pickled.ENDS and place.is_file():
        pickled.refuse_pickle(place)
    if place.is_file():
        folder = place.parent
        return folder.parent if folder.name == "checkpoints" else folder
    if not place.is_dir():
        raise FileError(f"features '{cut(str(given), FILE_ROOM)}'", wanted=wanted, got="neither")
    return place


def _named(format: str | None) -> tuple[Format, ...]:
    if format is None:
        return FORMATS
    chosen = tuple(each for each in FORMATS if each.name == format)
    if not chosen:
        known = ", ".join(each.name for each in FORMATS)
        raise PathExpandError("format", wanted=f"one of {known}", got=shown(format))
    return chosen


def _found(
    place: FilePath, formats: tuple[Format, ...], depth: int = 0
) -> Iterator[tuple[Format, FilePath]]:
    """Yield the folders that hold files of a format, from the top; none below one is looked at."""
    here = [each for each in formats if each.is_in(place)]
    if here:
        yield from ((each, place) for each in here)
        return
    if depth < _DEEPEST:
        for folder in sorted(each for each in place.iterdir() if each.is_dir()):
            yield from _found(folder, formats, depth + 1)


def _refuse_none(place: FilePath, format: str | None) -> None:
    for end in pickled.ENDS:
        pickle = next(place.rglob(f"*{end}"), None)
        if pickle is not None:
            pickled.refuse_pickle(pickle)
    wanted = f"files of {format or 'a format that is known'}"
    marks = "; ".join(
        f"{each.name}: {', '.join(m if isinstance(m, str) else m[0] for m in each.marks)}"
        for each in _named(format)
    )
    raise FileError(f"{place}", wanted=wanted, got="none", remedy=f"they are {marks}")
