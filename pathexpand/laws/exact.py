"""Law 1 without rounding: the engine itself, run on exact numbers and on polynomials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run, from_state_dict
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.remainder import remainder
from pathexpand.engine.total import totals
from pathexpand.engine.value import Readout, path_value
from pathexpand.errors import ModelError
from pathexpand.laws.reference import cut
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.model.forward import forward
from pathexpand.symbolic import Path, expand
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget, Target

Array = npt.NDArray[Any]


def check_exact_closure(
    model: Model,
    tokens: Sequence[int],
    patterns: Sequence[Array],
    *,
    position: int = -1,
    mask: Sequence[bool] | None = None,
) -> LawResult:
    """Check that path sums equal the dense pass exactly, for a model with exact weights.

    Weights and `patterns` (head, query, key), one array a layer, hold `Fraction`, `int` or sympy
    polynomials (dtype object). The engine that values float models is run on them unchanged:
    totals, every path of the symbolic expansion one by one, block enumeration, and listed paths
    plus remainder, each for a logit, a centred logit, a difference and a direction. Raises
    `ModelError` for float weights.

    >>> from pathexpand.laws import rational_model, rational_patterns
    >>> model = rational_model(seed=1)
    >>> check_exact_closure(model, [3, 1, 4], rational_patterns(model, 3, seed=2)).bound
    0.0
    """
    if any(array.dtype != object for _, array in model.weights.named()):
        raise ModelError("exact closure", wanted="exact weights (dtype object)", got="floats")
    run = exact_run(model, tokens, patterns, mask=mask)
    place = run.position(position)
    deviations: list[Deviation] = []
    for what in _targets(model):
        dense = what.dense(model.weights, run.dense.residual[-1][0, place])
        readout = what.readout(model.weights, place)
        deviations += (
            Deviation(_distance(dense, value), 0, f"{route} of {what.describe(None)}")
            for route, value in _routes(run, readout)
        )
    return judged("exact closure", deviations, f"{model.network.count():,} paths, exact numbers")


def check_exact_cut(run: Run, *, sizes: int = 3, paths: int = 300) -> LawResult:
    """Check exact closure on a small rational cut of a run's model.

    Kept are the first `sizes` dimensions of the stream, of each head and of the vocabulary, and as
    many heads and layers as `paths` allows, with the same biases and positions; numbers are taken
    as the floats they are, so nothing is rounded. What is checked is the engine on this
    architecture, not the whole model.

    >>> from pathexpand import api
    >>> check_exact_cut(api.load("two-layer").run("to be")).error
    0.0
    """
    small = cut(run, paths=paths)
    tokens = min(len(run.tokens), sizes)
    model = _corner(small.run, sizes)
    patterns = [fractions(pattern[:, :tokens, :tokens]) for pattern in small.run.patterns]
    ids = [int(token) % model.config.d_vocab for token in run.tokens[:tokens]]
    found = check_exact_closure(model, ids, patterns)
    detail = f"{small.detail}; first {sizes} dimensions of each size, as rationals"
    return LawResult(found.name, found.holds, found.error, found.bound, detail)


def check_polynomial_identity(
    *, layers: int = 2, heads: int = 2, positions: int = 2, d_model: int = 2, biases: bool = True
) -> LawResult:
    """Check closure with every weight and every pattern entry an independent sympy variable.

    What holds as a polynomial identity holds for all weights and patterns of these sizes.

    >>> check_polynomial_identity(layers=1, heads=1).holds
    True
    """
    from sympy import QQ
    from sympy.polys.rings import ring

    sizes = {
        "n_layers": layers,
        "n_heads": heads,
        "d_model": d_model,
        "d_head": 1,
        "d_vocab": positions,
        "d_vocab_out": 2,
        "n_ctx": positions,
    }
    shapes = _shapes(sizes, biases)
    shapes |= {f"A{layer}": (heads, positions, positions) for layer in range(layers)}
    counts = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    _, *variables = ring([f"x{n}" for n in range(sum(counts.values()))], QQ)
    arrays, used = {}, 0
    for name, shape in shapes.items():
        array = np.empty(counts[name], dtype=object)
        array[:] = variables[used : used + counts[name]]
        arrays[name], used = array.reshape(shape), used + counts[name]
    patterns = [np.array(arrays.pop(f"A{layer}")) for layer in range(layers)]
    model = from_state_dict(arrays, {"attn_only": True, **sizes})
    found = check_exact_closure(model, list(range(positions)), patterns)
    detail = f"{model.network.count()} paths, {used} variables"
    return LawResult("polynomial identity", found.holds, found.error, found.bound, detail)


def exact_run(
    model: Model,
    tokens: Sequence[int],
    patterns: Sequence[Array],
    *,
    mask: Sequence[bool] | None = None,
) -> Run:
    """Run a model on token ids with given patterns (head, query, key) in place of its own.

    >>> from pathexpand.laws import rational_model, rational_patterns
    >>> model = rational_model(seed=1)
    >>> len(exact_run(model, [3, 1], rational_patterns(model, 2, seed=2)).tokens)
    2
    """
    ids = np.array([tokens], dtype=np.int64)
    real = np.ones(ids.shape, dtype=bool) if mask is None else np.array([mask], dtype=bool)
    given = [pattern[None] for pattern in patterns]
    return Run(model, forward(model.weights, model.config, ids, real, patterns=given))


def fractions(array: Array) -> Array:
    """Give the same numbers as exact rationals, dtype object.

    >>> fractions(np.array([0.5]))
    array([Fraction(1, 2)], dtype=object)
    """
    out = np.empty(array.shape, dtype=object)
    out.ravel()[:] = [Fraction(number) for number in array.ravel().tolist()]
    return out


def _routes(run: Run, readout: Readout) -> Iterator[tuple[str, Any]]:
    """Yield the sum of all paths by every route the engine has."""
    frozen = run.frozen
    yield "totals", totals(frozen, readout).sum()
    terms = expand(run.model.network.expression())
    singly = {Path.from_term(term): coefficient for term, coefficient in terms.items()}
    values = {path: path_value(frozen, readout, path) for path in singly}
    yield "expansion", sum(singly[path] * value for path, value in values.items())
    yield "enumeration", sum(sum(block.values) for block in enumerate_values(frozen, readout))
    paths = sorted(values)
    for listed in (paths[1::3], paths[::2], paths):
        rest = remainder(frozen, readout, listed)
        yield "listed + remainder", sum(values[path] for path in listed) + rest.value


def _targets(model: Model) -> list[Target]:
    last = model.config.d_vocab_out - 1
    direction = np.empty(model.config.d_model, dtype=object)
    direction[:] = [(-1) ** n * (n + 2) for n in range(model.config.d_model)]
    targets: list[Target] = [LogitTarget(last, centred=False), LogitTarget(last)]
    targets += [DifferenceTarget(last, 0)] if last else []
    return [*targets, DirectionTarget(direction)]


def _distance(one: Any, other: Any) -> Any:
    """Give |one - other|, or for polynomials 1 where they differ."""
    difference = one - other
    if isinstance(difference, int | float | Fraction | np.number):
        return abs(difference)
    return int(difference != 0)


def _corner(run: Run, sizes: int) -> Model:
    """Cut every axis but layers and heads to its first entries."""
    weights, config = run.model.weights, run.model.config
    size = {
        name: min(getattr(config, name), sizes)
        for name in ("d_model", "d_head", "d_vocab", "d_vocab_out", "n_ctx")
    }
    axes: dict[str, tuple[str | None, ...]] = {
        "W_E": ("d_vocab", "d_model"),
        "W_pos": ("n_ctx", "d_model"),
        "W_U": ("d_model", "d_vocab_out"),
        "b_U": ("d_vocab_out",),
        "W_O": (None, "d_head", "d_model"),
        "b_O": ("d_model",),
    }
    axes |= dict.fromkeys(("W_Q", "W_K", "W_V"), (None, "d_model", "d_head"))
    axes |= dict.fromkeys(("b_Q", "b_K", "b_V"), (None, "d_head"))
    tensors = {}
    for name, array in weights.named():
        kept = tuple(slice(axis and size[axis]) for axis in axes[name.rsplit(".")[-1]])
        tensors[name] = fractions(array[kept])
    raw = {field.name: getattr(config, field.name) for field in fields(config)}
    return from_state_dict(tensors, type(config)(**(raw | size)))


def _shapes(sizes: dict[str, int], biases: bool) -> dict[str, tuple[int, ...]]:
    heads, stream, head = sizes["n_heads"], sizes["d_model"], sizes["d_head"]
    shapes: dict[str, tuple[int, ...]] = {
        "embed.W_E": (sizes["d_vocab"], stream),
        "pos_embed.W_pos": (sizes["n_ctx"], stream),
        "unembed.W_U": (stream, sizes["d_vocab_out"]),
    }
    if biases:
        shapes["unembed.b_U"] = (sizes["d_vocab_out"],)
    for layer in range(sizes["n_layers"]):
        at = f"blocks.{layer}.attn."
        shapes |= {at + name: (heads, stream, head) for name in ("W_Q", "W_K", "W_V")}
        shapes[at + "W_O"] = (heads, head, stream)
        if biases:
            shapes |= {at + name: (heads, head) for name in ("b_Q", "b_K", "b_V")}
            shapes[at + "b_O"] = (stream,)
    return shapes
