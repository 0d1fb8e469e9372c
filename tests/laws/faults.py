"""Faults of an engine, one each, as patches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pathexpand.api import Run
from pathexpand.engine import best, enumeration, norm, norm_tree, prompt_tree, total, value
from pathexpand.engine import remainder as rest
from pathexpand.engine import rounding as bounds
from pathexpand.engine import search as engine_search
from pathexpand.frozen import FrozenStage, FrozenSum, Group, HeadGroup, freeze, network_of
from pathexpand.model import forward as dense
from pathexpand.model.prompt import pad
from pathexpand.model.rows import Rows
from pathexpand.symbolic import Network, Path, Sum, notation
from pathexpand.symbolic.query import everything
from pathexpand.table import PathTable
from pathexpand.target import DifferenceTarget, LogitTarget

Patch = Callable[[pytest.MonkeyPatch], None]

# --- how to break something -----------------------------------------------------------------------


def everywhere(monkeypatch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Replace a function wherever it has been imported, the laws' own modules left alone."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pathexpand"):
            for attribute, held in list(vars(module).items()):
                if held is old:
                    monkeypatch.setattr(module, attribute, new)


def in_engine(monkeypatch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Replace a function wherever the package, but not a law, has imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pathexpand") and not name.startswith("pathexpand.laws"):
            for attribute, held in list(vars(module).items()):
                if held is old:
                    monkeypatch.setattr(module, attribute, new)


def swap(old: Any, new: Any) -> Patch:
    return lambda monkeypatch: everywhere(monkeypatch, old, new)


def on(owner: Any, name: str, new: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, new)


def groups_changed(change: Callable[[Any], Any], kind: type[Group] = HeadGroup) -> Patch:
    """Freeze with every group of a kind changed."""

    def changed(stage: FrozenStage) -> FrozenStage:
        groups = (change(each) if isinstance(each, kind) else each for each in stage.groups)
        return replace(stage, groups=tuple(groups))

    def broken(*args: Any, **kwargs: Any) -> FrozenSum:
        frozen = freeze(*args, **kwargs)
        stages = tuple(map(changed, frozen.stages))
        return FrozenSum(frozen.sources, stages, frozen.streams, frozen.mask, frozen.constant)

    return swap(freeze, broken)


def frozen_layer() -> Any:
    """Give the class that freezes a layer."""
    return sys.modules["pathexpand.frozen.freeze"]._Layer  # type: ignore[attr-defined]


def layer_changed(name: str, change: Callable[[Any], Any]) -> Patch:
    """Let one method of what freezes a layer see a changed layer."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(frozen_layer(), name)
        monkeypatch.setattr(frozen_layer(), name, lambda self, *args: original(change(self), *args))

    return patch


# --- attention ------------------------------------------------------------------------------------


def suffix_reversed(frozen: Any, readout: Any, components: Any) -> Any:
    suffix = value.empty_suffix(frozen, readout)
    for component in tuple(components):
        suffix = value.prepend(suffix, frozen, component)
    return suffix


def block_dropped(*args: Any, **kwargs: Any) -> Any:
    for block in enumeration_original(*args, **kwargs):
        if len(block.words) > 1 and block.source == "embed":
            yield replace(block, words=block.words[1:], values=block.values[1:])
        else:
            yield block


def block_doubled(*args: Any, **kwargs: Any) -> Any:
    blocks = list(enumeration_original(*args, **kwargs))
    return iter([*blocks, blocks[0]])


enumeration_original = enumeration.enumerate_values


def bias_stays(frozen: FrozenSum, readout: Any, query: Any = None) -> Any:
    """Book biases after the last layer, so that no later head reads them."""
    sources = tuple(
        replace(each, boundary=frozen.depth) if "bias" in each.label else each
        for each in frozen.sources
    )
    asked = everything(frozen.network()) if query is None else query
    return totals_original(replace(frozen, sources=sources), readout, asked)


totals_original = total.totals


def without_rows(layer: Any) -> Any:
    """Let every row of the patterns sum to 1."""
    pattern = layer.trace.pattern
    whole = np.ones_like(pattern) / pattern.shape[-1]
    if pattern.dtype == object:
        whole = np.zeros(pattern.shape, dtype=object)
        whole[..., 0] = 1
    return replace(layer, trace=replace(layer.trace, pattern=whole))


def remainder_off(listed: Callable[[list[Path]], list[Path]]) -> Patch:
    original = rest.remainder
    return swap(
        original,
        lambda frozen, readout, paths, **options: original(
            frozen, readout, listed(list(paths)), **options
        ),
    )


def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    gamma = bounds.gamma
    in_engine(monkeypatch, gamma, lambda *steps: gamma(*steps) * 1e-5)
    monkeypatch.setattr(rest, "UNIT", 0.0)


def relative_to_total(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Run.paths

    def broken(self: Run, *args: Any, **kwargs: Any) -> PathTable:
        table = paths(self, *args, **kwargs)
        return replace(table, gap_bound=1e-13 * abs(table.dense))

    monkeypatch.setattr(Run, "paths", broken)


def certificate(factor: float) -> Patch:
    original = engine_search.search

    def broken(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return replace(found, bound=found.bound * factor)

    return swap(original, broken)


def second_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_search.search

    def broken(tree: Any, query: Any, *, top: int, **options: Any) -> Any:
        found = original(tree, query, top=top + 1, **options)
        return replace(found, paths=(found.paths[0], *found.paths[2:]))

    everywhere(monkeypatch, original, broken)


def ties_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(Path):
        def __lt__(self, other: object) -> bool:
            return Path.__lt__(other, self)  # type: ignore[arg-type]

    monkeypatch.setattr(best, "_by_size", lambda entry: (-entry[0], Last(*_parts(entry[1]))))


def _parts(path: Path) -> tuple[Any, ...]:
    return path.source, path.components


def shortformer_in_values(weights: Any, config: Any, run: Any, **options: Any) -> FrozenSum:
    frozen = freeze(weights, config, run, **options)
    if config.positional_embedding_type != "shortformer":
        return frozen
    first, *others = frozen.sources
    first = replace(first, values=first.values + weights.W_pos[run.places[0]])
    return FrozenSum((first, *others), frozen.stages, frozen.streams, frozen.mask, frozen.constant)


def heads_chained(frozen: Any, index: int, reads: Any, query: Any, some: int) -> Any:
    """Let each head of a stage read what the heads before it wrote; the query has one state."""
    stage = frozen.stages[index]
    out = np.array(stage.past(reads))
    for group in stage.groups:
        for number in range(len(group.components)):
            out[:, 1 : some + 1] += group.pull(out[:, :some], [number])
    return out


def source_forgotten(frozen: FrozenSum, readout: Any, query: Any = None) -> Any:
    asked = everything(frozen.network()) if query is None else query
    return totals_original(replace(frozen, sources=frozen.sources[:-1]), readout, asked)


def booked_elsewhere(suffix: Any, frozen: Any, source: Any) -> Any:
    return np.roll(completed_original(suffix, frozen, source), 1)


completed_original = value.completed


def uncentred_constant(self: LogitTarget, unembed: Any, position: int) -> Any:
    found = readout_original(self, unembed, position)
    bias = unembed.weights.b_U
    return (
        found if bias is None else replace(found, constant=found.constant + sum(bias) / len(bias))
    )


readout_original = LogitTarget.readout


def difference_swapped(self: DifferenceTarget, unembed: Any, position: int) -> Any:
    return difference_original(DifferenceTarget(self.other, self.token), unembed, position)


difference_original = DifferenceTarget.readout


def first_pattern(self: HeadGroup, rows: Any, vectors: Any, index: int) -> Any:
    _, behind = move_original(self, rows, vectors, index)
    return rows @ self.patterns[0], behind


def scaled_by_norm(self: HeadGroup, rows: Any, vectors: Any, index: int) -> Any:
    moved, behind = move_original(self, rows, vectors, index)
    return moved, behind / np.linalg.norm(self.W_O[index].astype(float))


move_original = HeadGroup.move


def no_unembed_bias(weights: Any, config: Any, **options: Any) -> Network:
    network = network_of(weights, config, **options)
    return replace(network, sources=network.sources[:-1])


def count_off(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Network.count
    monkeypatch.setattr(Network, "count", lambda self: count(self) + 1)


def mask_ignored(config: Any, mask: Any) -> Any:
    return visible_original(config, np.ones_like(mask))


visible_original = dense._visible


def later_seen(config: Any, mask: Any) -> Any:
    return visible_original(replace(config, attention_dir="bidirectional"), mask)


def places_of_all(weights: Any, config: Any, tokens: Any, mask: Any, **options: Any) -> Any:
    weights_moved = weights
    if weights.pos is not None and not mask.all():
        moved = Rows("pos", np.roll(weights.pos.whole(), 1, axis=0))
        weights_moved = replace(weights, pos=moved)
    return forward_original(weights_moved, config, tokens, mask, **options)


forward_original = dense.forward


def shortformer_in_stream(weights: Any, config: Any, *args: Any, **options: Any) -> Any:
    if config.positional_embedding_type == "shortformer":
        config = replace(config, positional_embedding_type="standard")
    return forward_original(weights, config, *args, **options)


def counted_twice(self: Network) -> Any:
    """Give the first source's expansion a coefficient of 2."""
    expression = expression_original(self)
    return Sum(((2, expression.parts[0][1]), *expression.parts[1:]))


expression_original = Network.expression


def unnormalised(scores: Any, seen: Any, sinks: Any = None) -> Any:
    return 1.01 * softmax_original(scores, seen, sinks)


softmax_original = dense.masked_softmax


def no_output_bias(attn: Any, stream: Any, pattern: Any, *rest: Any) -> Any:
    return output_original(replace(attn, b_O=None), stream, pattern, *rest)


output_original = dense._attention_output


def heads_misfused(attn: Any, stream: Any, pattern: Any, *rest: Any) -> Any:
    return output_original(replace(attn, W_O=attn.W_O[::-1]), stream, pattern, *rest)


def one_sided_scores(attn: Any, reads: Any, rotary: Any = None, places: Any = None) -> Any:
    queries = reads[:, None] @ abs(attn.W_Q)
    keys = reads[:, None] @ attn.W_K
    return queries @ np.swapaxes(keys, -1, -2)


def padded_left(prompts: Any) -> Any:
    batch = pad(prompts)
    if len(prompts) > 1:
        return replace(batch, ids=np.roll(batch.ids, 1, axis=1))
    return batch


def factors_reversed(weights: Any, path: Path) -> Any:
    factors = factors_original(weights, path)
    if path.order < 2:
        return factors
    names = list(factors)
    inner = names[3:-1] + names[1:3]
    return {name: factors[name] for name in (names[0], *inner, names[-1])}


factors_original = norm.path_factors


def largest_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_search.search

    def broken(tree: Any, query: Any, *, top: int, **options: Any) -> Any:
        found = original(tree, query, top=top + 1, **options)
        return replace(found, paths=found.paths[1:])

    everywhere(monkeypatch, original, broken)


def stream_reversed(frozen: Any, position: int, path: Path) -> Any:
    reversed_ = [frozen.places[each] for each in path.components]
    source = next(each for each in frozen.sources if each.label == path.source)
    row = np.eye(frozen.positions)[position]
    for _, group, index in reversed_:
        row = row @ group.patterns[index]
    stream = row @ source.values
    for _, group, index in reversed_:
        stream = (stream @ group.W_V[index]) @ group.W_O[index]
    return stream


def text_reversed(self: Path) -> str:
    return " > ".join((self.source, *(each.label for each in reversed(self.components))))


def first_word_only(*args: Any, **options: Any) -> str:
    return format_original(*args, **options).replace("L1H1", "L1H0")


format_original = notation.format_term


def json_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    read = PathTable.from_json

    def broken(text: str) -> PathTable:
        table = read(text)
        return replace(table, dense=float(f"{table.dense:.6g}"))

    monkeypatch.setattr(PathTable, "from_json", broken)


def order_off(monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_search.search

    def broken(*args: Any, max_order: int | None = None, **options: Any) -> Any:
        return original(*args, max_order=None if max_order is None else max_order + 1, **options)

    everywhere(monkeypatch, original, broken)


def sizes_without(tree: Any, source: str) -> Patch:
    """Let a search value every path from one source at 0."""
    original = tree.sizes

    def broken(self: Any, nodes: Any, label: str) -> Any:
        return original(self, nodes, label) * (label != source)

    return on(tree, "sizes", broken)


def bounds_scaled(tree: Any, factor: float) -> Patch:
    original = tree.bounds

    def broken(self: Any, stage: int, nodes: Any) -> Any:
        ask = original(self, stage, nodes)
        return lambda *asked: factor * ask(*asked)

    return on(tree, "bounds", broken)


def energy_without_last_source(monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_search.rest_energy

    def broken(tree: Any, query: Any, paths: Any) -> float:
        return original(tree, query, [*paths, *query.paths(max_order=0)])

    everywhere(monkeypatch, original, broken)


@dataclass(frozen=True)
class Fault:
    """A fault, the run it shows on, and every law that must see it.

    With `rerun`, it is the dense pass that is at fault, or what is made before it.
    """

    name: str
    patch: Patch
    caught_by: tuple[str, ...]
    on: str = "plain"
    rerun: bool = False


FAULTS = (
    Fault(
        "path order reversed",
        swap(value.suffix_of, suffix_reversed),
        ("exact", "table closure", "top paths", "path logits"),
    ),
    Fault(
        "a path dropped from the enumeration",
        swap(enumeration_original, block_dropped),
        ("exact", "enumeration"),
    ),
    Fault(
        "a path enumerated twice",
        swap(enumeration_original, block_doubled),
        ("exact", "enumeration"),
    ),
    Fault(
        "a bias not carried through later heads",
        swap(totals_original, bias_stays),
        ("closure", "exact", "polynomial", "totals"),
    ),
    Fault(
        "b_V without the row sum",
        layer_changed("_attention_bias", without_rows),
        ("exact", "polynomial"),
    ),
    Fault(
        "remainder one path too many",
        remainder_off(lambda paths: paths[1:]),
        ("exact", "table closure", "remainder", "enumeration"),
    ),
    Fault(
        "remainder one path short",
        remainder_off(lambda paths: [*paths, *([] if Path("pos") in paths else [Path("pos")])]),
        ("exact", "remainder", "enumeration"),
    ),
    Fault("a rounding bound that is too small", small_bounds, ("table closure",), on="cancelling"),
    Fault(
        "tolerance relative to the total",
        relative_to_total,
        ("table closure",),
        on="cancelling",
    ),
    Fault("a certificate that is too small", certificate(0.9), ("top paths",)),
    Fault("values bounded too low", bounds_scaled(prompt_tree.PromptTree, 0.05), ("top paths",)),
    Fault(
        "a source forgotten by the search",
        sizes_without(prompt_tree.PromptTree, "embed"),
        ("top paths",),
    ),
    Fault("a remainder's energy that is too small", energy_without_last_source, ("few paths",)),
    Fault("the second largest path dropped", second_dropped, ("top paths", "few paths")),
    Fault("ties in reverse order", ties_reversed, ("top paths",), on="ties"),
    Fault("max_order off by one", order_off, ("short paths",)),
    Fault(
        "patterns transposed",
        groups_changed(lambda group: replace(group, patterns=np.swapaxes(group.patterns, 1, 2))),
        ("closure", "table closure", "exact", "polynomial", "totals", "top paths"),
        on="bidirectional",
    ),
    Fault(
        "W_V and W_O swapped for square heads",
        groups_changed(lambda group: replace(group, W_V=group.W_O, W_O=group.W_V)),
        ("closure", "table closure", "totals", "top paths"),
        on="square",
    ),
    Fault(
        "the order of heads lost",
        groups_changed(lambda group: replace(group, W_O=group.W_O[::-1])),
        ("closure", "table closure", "exact", "totals", "top paths"),
    ),
    Fault(
        "shortformer positions in the value stream",
        swap(freeze, shortformer_in_values),
        ("closure", "table closure", "exact shortformer", "totals", "top paths"),
        on="shortformer",
    ),
    Fault(
        "shortformer positions in the dense stream",
        swap(forward_original, shortformer_in_stream),
        ("layer sums", "closure", "exact shortformer"),
        on="shortformer",
        rerun=True,
    ),
    Fault(
        "a coefficient of the expansion doubled",
        on(Network, "expression", counted_twice),
        ("terms", "exact", "polynomial"),
    ),
    Fault(
        "heads of one layer chained",
        swap(total._longer, heads_chained),
        ("closure", "exact", "totals"),
    ),
    Fault(
        "totals forget a source",
        swap(totals_original, source_forgotten),
        ("closure", "exact", "polynomial", "totals"),
    ),
    Fault(
        "values booked at the wrong token",
        swap(completed_original, booked_elsewhere),
        ("top paths", "padding"),
    ),
    Fault(
        "b_U not centred",
        on(LogitTarget, "readout", uncentred_constant),
        ("closure", "table closure", "exact"),
    ),
    Fault(
        "a difference the wrong way round",
        on(DifferenceTarget, "readout", difference_swapped),
        ("closure", "difference", "exact"),
    ),
    Fault(
        "every head with the first head's pattern",
        on(HeadGroup, "move", first_pattern),
        ("table closure", "top paths", "permutation", "exact"),
    ),
    Fault(
        "heads scaled by the norm of W_O",
        on(HeadGroup, "move", scaled_by_norm),
        ("table closure", "top paths", "value gauge"),
    ),
    Fault(
        "b_U missing from the network",
        swap(network_of, no_unembed_bias),
        ("terms", "exact"),
        rerun=True,
    ),
    Fault("paths counted wrongly", count_off, ("terms", "enumeration", "table closure")),
    Fault(
        "padding seen",
        swap(visible_original, mask_ignored),
        ("padding",),
    ),
    Fault("later tokens seen", swap(visible_original, later_seen), ("attention rows",), rerun=True),
    Fault("padding counted as positions", swap(forward_original, places_of_all), ("padding",)),
    Fault(
        "patterns not normalised",
        swap(softmax_original, unnormalised),
        ("attention rows",),
        rerun=True,
    ),
    Fault(
        "b_O missing from the dense pass",
        swap(output_original, no_output_bias),
        ("layer sums", "closure", "table closure", "exact"),
        rerun=True,
    ),
    Fault(
        "heads fused in the wrong order",
        swap(output_original, heads_misfused),
        ("layer sums", "closure", "table closure", "exact"),
        rerun=True,
    ),
    Fault(
        "scores that no change of basis leaves alone",
        swap(dense.attention_scores, one_sided_scores),
        ("score gauge",),
    ),
    Fault("a batch padded at the wrong end", swap(pad, padded_left), ("batch",)),
    Fault(
        "factors of a path matrix in the wrong order",
        swap(factors_original, factors_reversed),
        ("path matrices",),
    ),
    Fault("the largest norm missing", largest_dropped, ("norms", "top paths")),
    Fault("norms bounded too low", bounds_scaled(norm_tree.NormTree, 0.05), ("norms",)),
    Fault("norms of a source forgotten", sizes_without(norm_tree.NormTree, "pos"), ("norms",)),
    Fault(
        "path logits moved backwards", swap(value.path_stream, stream_reversed), ("path logits",)
    ),
    Fault("paths written backwards", on(Path, "__str__", text_reversed), ("text",)),
    Fault("terms written with another head", swap(format_original, first_word_only), ("text",)),
    Fault("JSON rounded", json_rounded, ("JSON",)),
)
