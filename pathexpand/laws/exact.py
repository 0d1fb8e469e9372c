"""Law 1 without rounding: the engine itself, run on exact numbers and on polynomials.

Patterns, norm scales and gates are given, so that everything is a sum of products. What the engine
makes of it is compared with a linear pass that folds nothing, and with every path by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pathexpand.api import Model, Run
from pathexpand.engine.enumeration import enumerate_values
from pathexpand.engine.remainder import remainder
from pathexpand.engine.total import component_totals, pair_totals, totals
from pathexpand.engine.value import Readout, path_stream, path_value
from pathexpand.errors import ModelError
from pathexpand.laws.cut import cut
from pathexpand.laws.design import Design, build
from pathexpand.laws.held import Held, HeldLayer, Side, changed, held_of, held_run
from pathexpand.laws.problems import given_held
from pathexpand.laws.reference import read_all, reading_of
from pathexpand.laws.result import Deviation, LawResult, judged
from pathexpand.laws.walk import Walk
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.forward import forward
from pathexpand.model.weights import Rows, Weights
from pathexpand.symbolic import Head, Path, expand
from pathexpand.target import DifferenceTarget, DirectionTarget, LogitTarget, Target

Array = npt.NDArray[Any]


def check_exact_closure(
    model: Model,
    tokens: Sequence[int],
    held: Sequence[Array] | Held,
    *,
    position: int = -1,
    mask: Sequence[bool] | None = None,
) -> LawResult:
    """Check that path sums equal the dense pass exactly, for a model with exact weights.

    Weights and what is held hold `Fraction`, `int` or sympy polynomials (dtype object). For an
    attention-only model patterns (head, query, key), one array a layer, are enough. The engine
    that values float models is run on them unchanged: totals, every path of the symbolic expansion
    one by one, block enumeration, and listed paths plus remainder, each for a logit, a centred
    logit, a difference and a direction; and each path against one that is evaluated by itself.
    Raises `ModelError` for float weights.

    >>> from pathexpand.laws import rational_model, rational_patterns
    >>> model = rational_model(seed=1)
    >>> check_exact_closure(model, [3, 1, 4], rational_patterns(model, 3, seed=2)).bound
    0.0
    """
    if any(array.dtype != object for _, array in model.weights.named()):
        raise ModelError("exact closure", wanted="exact weights (dtype object)", got="floats")
    run = exact_run(model, tokens, held, mask=mask)
    place, walk = run.position(position), Walk(run)
    whole = list(walk.whole())
    deviations: list[Deviation] = []
    for what in _targets(model):
        dense = _dense(run, what, place)
        readout = what.readout(run.unembed, place)
        values = _values(run, readout)
        deviations += (
            Deviation(_distance(dense, value), 0, f"{route} of {what.describe(None)}")
            for route, value in _routes(run, readout, values)
        )
        deviations += (
            Deviation(_distance(values[each.path], each.value), 0, f"value of {each.path}")
            for each in read_all(walk, whole, reading_of(model.weights, what, place))
        )
        deviations += _partial_sums(run, readout, values)
    deviations += _streams(run, place)
    return judged("exact closure", deviations, f"{model.network.count():,} paths, exact numbers")


def check_exact_cut(run: Run, *, sizes: int = 3, paths: int = 300) -> LawResult:
    """Check exact closure on a small rational cut of a run's model.

    Kept are the first `sizes` dimensions of the stream, of each head, MLP and of the vocabulary,
    and as many heads and layers as `paths` allows, with the same biases, norms and positions,
    and with the run's own patterns, norm scales and gates; numbers are taken as the floats they
    are, so nothing is rounded. What is checked is the engine on this architecture, not the whole
    model.

    >>> from pathexpand import api
    >>> check_exact_cut(api.load("two-layer").run("to be")).error
    0.0
    """
    small = cut(run, paths=paths)
    tokens = min(len(run.tokens), sizes)
    model = _corner(small.run.model, sizes)
    held = changed(_first(held_of(small.run), tokens, sizes), fractions)
    ids = [int(token) % model.config.d_vocab for token in run.tokens[:tokens]]
    found = check_exact_closure(model, ids, held)
    detail = f"{small.detail}; first {sizes} dimensions of each size, as rationals"
    if not found.holds:
        detail += f"; {found.detail}"
    return LawResult(found.name, found.holds, found.error, found.bound, detail)


def check_polynomial_identity(
    *,
    layers: int = 2,
    heads: int = 2,
    positions: int = 2,
    d_model: int = 2,
    biases: bool = True,
    design: Design | None = None,
) -> LawResult:
    """Check closure with every weight and everything that is held an independent sympy variable.

    What holds as a polynomial identity holds for all weights, patterns, norm scales and gates of
    these sizes. A `design` takes the place of the sizes; without one there are heads alone.

    >>> check_polynomial_identity(layers=1, heads=1).holds
    True
    """
    design = design or Design(
        n_layers=layers,
        n_heads=heads,
        n_key_value_heads=heads,
        d_model=d_model,
        d_head=1,
        d_mlp=0,
        d_vocab=positions,
        d_vocab_out=2,
        n_ctx=positions,
        biases=biases,
        norms=(),
        final_norm=False,
    )
    numbers: list[int] = []

    def fill(shape: tuple[int, ...]) -> Array:
        """Give each entry the number of a variable of its own."""
        out = np.arange(len(numbers), len(numbers) + int(np.prod(shape))).reshape(shape)
        numbers.extend(out.ravel().tolist())
        return out

    model = build(design, fill, number=lambda _: 1)
    held = given_held(model, positions, fill)
    variables = _variables(len(numbers))
    model = _with_weights(model, changed(model.weights, lambda array: variables[array]))
    found = check_exact_closure(
        model, list(range(positions)), changed(held, lambda array: variables[array])
    )
    detail = f"{model.network.count()} paths, {len(numbers)} variables"
    if not found.holds:
        detail += f"; {found.detail}"
    return LawResult("polynomial identity", found.holds, found.error, found.bound, detail)


def exact_run(
    model: Model,
    tokens: Sequence[int],
    held: Sequence[Array] | Held,
    *,
    mask: Sequence[bool] | None = None,
) -> Run:
    """Run a model on token ids with patterns, or all that is held, given in place of its own.

    A model of attention alone is run by its own dense pass, others by a linear one.

    >>> from pathexpand.laws import rational_model, rational_patterns
    >>> model = rational_model(seed=1)
    >>> len(exact_run(model, [3, 1], rational_patterns(model, 2, seed=2)).tokens)
    2
    """
    ids = np.array(tokens, dtype=np.int64)
    real = np.ones(ids.shape, dtype=bool) if mask is None else np.array(mask, dtype=bool)
    known = held if isinstance(held, Held) else Held(tuple(HeldLayer(each) for each in held))
    if not is_linear(model.weights):
        return held_run(model, ids, real, known)
    given = [layer.pattern[None] for layer in known.layers]
    dense = forward(model.weights, model.config, ids[None], real[None], patterns=given)
    return Run(model, dense)


def is_linear(weights: Weights) -> bool:
    """Say whether a model is linear once its patterns are held: no norms, no MLPs.

    >>> from pathexpand import api
    >>> is_linear(api.load("two-layer").weights)
    True
    """
    if weights.embed_norms or weights.final_norm is not None or weights.transform is not None:
        return False
    return all(
        block.mlp is None
        and not any(getattr(block, each.name) for each in fields(block) if "ln" in each.name)
        for block in map(weights.outline, range(len(weights.blocks)))
    )


def fractions(array: Array) -> Array:
    """Give the same numbers as exact rationals, dtype object.

    >>> fractions(np.array([0.5]))
    array([Fraction(1, 2)], dtype=object)
    """
    out = np.empty(array.shape, dtype=object)
    out.ravel()[:] = [Fraction(number) for number in array.ravel().tolist()]
    return out


# --- what is compared ---------------------------------------------------------------------------


def _dense(run: Run, what: Target, place: int) -> Any:
    """Give a target's value by the linear pass, nothing folded."""
    side, last = Side(run.model, held_of(run)), run.dense.residual[-1][0, place]
    return what.dense(run.model.weights.logits(side.read(last, place, constants=True)), last)


def _values(run: Run, readout: Readout) -> dict[Path, Any]:
    """Value every path of the symbolic expansion, one by one."""
    terms = expand(run.model.network.expression())
    paths = ((Path.from_term(term), count) for term, count in terms.items())
    return {path: count * path_value(run.frozen, readout, path) for path, count in paths}


def _routes(run: Run, readout: Readout, values: dict[Path, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the sum of all paths by every route the engine has."""
    frozen = run.frozen
    yield "totals", totals(frozen, readout).sum()
    yield "expansion", sum(values.values())
    yield "enumeration", sum(sum(block.values) for block in enumerate_values(frozen, readout))
    paths = sorted(values)
    for listed in (paths[1::3], paths[::2], paths):
        rest = remainder(frozen, readout, listed)
        yield "listed + remainder", sum(values[path] for path in listed) + rest.value


def _partial_sums(run: Run, readout: Readout, values: dict[Path, Any]) -> Iterator[Deviation]:
    """Compare sums through each component, and through each pair of heads, with single paths."""
    single, double = component_totals(run.frozen, readout), pair_totals(run.frozen, readout)
    through: dict[Any, Any] = dict.fromkeys([*single, *double], 0)
    for path, value in values.items():
        heads = [each for each in path.components if isinstance(each, Head)]
        pairs = [(one, two) for n, one in enumerate(heads) for two in heads[n + 1 :]]
        for key in (*path.components, *pairs):
            through[key] = through[key] + value
    for key, total in through.items():
        name = key if not isinstance(key, tuple) else " and ".join(map(str, key))
        found = double[key] if isinstance(key, tuple) else single[key]
        yield Deviation(_distance(found, total), 0, f"sum through {name}")


def _streams(run: Run, place: int) -> Iterator[Deviation]:
    """Compare the sum of what paths add to the last stream, worked forward, with the stream."""
    total: Any = 0
    for path in run.model.network.paths():
        if path.source != "b_U":
            total = total + path_stream(run.frozen, place, path)
    for number, (one, other) in enumerate(
        zip(total, run.dense.residual[-1][0, place], strict=True)
    ):
        yield Deviation(_distance(one, other), 0, f"last stream, dimension {number}")


def _targets(model: Model) -> list[Target]:
    last = model.config.d_vocab_out - 1
    direction = np.empty(model.config.d_model, dtype=object)
    nothing = model.weights.W_E.ravel()[0] * 0  # whole numbers would be divided as floats
    direction[:] = [nothing + (-1) ** n * (n + 2) for n in range(model.config.d_model)]
    targets: list[Target] = [LogitTarget(last, centred=False), LogitTarget(last)]
    targets += [DifferenceTarget(last, 0)] if last else []
    return [*targets, DirectionTarget(direction)]


def _distance(one: Any, other: Any) -> Any:
    """Give |one - other|, or for polynomials 1 where they differ."""
    difference = one - other
    if isinstance(difference, int | float | Fraction | np.number):
        return abs(difference)
    return int(difference != 0)


# --- exact models -------------------------------------------------------------------------------


def _variables(count: int) -> Array:
    """Give independent variables of a polynomial ring: (count,)."""
    from sympy import QQ
    from sympy.polys.rings import ring

    _, *variables = ring([f"x{n}" for n in range(count)], QQ)
    out = np.empty(count, dtype=object)
    out[:] = variables
    return out


def _with_weights(model: Model, weights: Weights) -> Model:
    return Model(Checkpoint(model.config, weights, model.tokenizer), mlp=model.mlp)


def _corner(model: Model, sizes: int) -> Model:
    """Cut every axis but those of layers and heads to its first entries, as rationals."""
    config, weights = model.config, model.weights
    names = ("d_model", "d_head", "d_mlp", "d_vocab", "d_vocab_out", "n_ctx")
    size = {name: min(getattr(config, name), sizes) for name in names}
    width, head, inner = size["d_model"], size["d_head"], size["d_mlp"]
    axes: dict[str, tuple[int | None, ...]] = {
        "W_O": (None, head, width),
        "W_out": (inner, width),
        **dict.fromkeys(("W_Q", "W_K", "W_V"), (None, width, head)),
        **dict.fromkeys(("b_Q", "b_K", "b_V"), (None, head)),
        **dict.fromkeys(("W_in", "W_gate"), (width, inner)),
        **dict.fromkeys(("b_in", "b_gate"), (inner,)),
        **dict.fromkeys(("b_O", "b_out", "weight", "bias"), (width,)),
        "W": (width, width),
        "b": (width,),
        "b_U": (size["d_vocab_out"],),
    }
    counts = {"embed": "d_vocab", "unembedding": "d_vocab_out", "pos": "n_ctx", "types": "types"}
    size["types"] = sizes
    own: dict[str, Any] = {
        name: _corner_of(getattr(weights, name), axes, name)
        for name in ("b_U", "embed_norms", "final_norm", "transform")
    }
    for name, count in counts.items():
        rows: Rows | None = getattr(weights, name)
        if rows is not None:
            some = rows.at(np.arange(min(rows.count, size[count])))[:, :width]
            own[name] = Rows(rows.name, fractions(some))
    own["blocks"] = tuple(_corner_of(block, axes) for block in weights.blocks)
    del size["types"]
    smaller = replace(config, **size, rotary=())
    return Model(Checkpoint(smaller, replace(weights, **own)), mlp=model.mlp)


def _corner_of(value: Any, axes: dict[str, tuple[int | None, ...]], name: str = "") -> Any:
    """Cut the arrays in a tree of parts by their names; numbers become rationals."""
    if isinstance(value, np.ndarray):
        return fractions(value[tuple(slice(size) for size in axes.get(name, ()))])
    if isinstance(value, tuple):
        return tuple(_corner_of(each, axes) for each in value)
    if hasattr(value, "__dataclass_fields__"):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        # What makes queries and keys is of no account once the pattern is held.
        parts |= {each: None for each in ("q_norm", "k_norm", "sinks") if each in parts}
        cut = {key: _corner_of(part, axes, key) for key, part in parts.items()}
        if "scale" in cut:
            cut["scale"] = Fraction(cut["scale"])
        return replace(value, **cut)
    return value


def _first(held: Held, positions: int, width: int) -> Held:
    """Keep what is held at the first positions, of the first dimensions and neurons."""
    layers = tuple(
        HeldLayer(
            layer.pattern[:, :positions, :positions],
            {name: scale[:positions] for name, scale in layer.scales.items()},
            None if layer.gates is None else layer.gates[:positions, :width],
            None if layer.written is None else layer.written[:positions, :width],
        )
        for layer in held.layers
    )
    gates = held.transform_gates
    some = None if gates is None else gates[:positions, :width]
    rest: Held = changed(
        replace(held, layers=(), transform_gates=None), lambda array: array[:positions]
    )
    return replace(rest, layers=layers, transform_gates=some)
