"""Broken engines, one fault each, and the laws that must see it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pathexpand import laws
from pathexpand.api import Model, Run, from_state_dict
from pathexpand.engine import best, enumeration, norm, norm_tree, prompt_tree, total, value
from pathexpand.engine import remainder as rest
from pathexpand.engine import rounding as bounds
from pathexpand.engine import search as engine_search
from pathexpand.frozen import FrozenSum, bias_source, freeze, network_of
from pathexpand.model import forward as dense
from pathexpand.model.config import Config
from pathexpand.model.prompt import pad
from pathexpand.symbolic import Network, Path, Sum, notation
from pathexpand.symbolic.query import everything
from pathexpand.table import PathTable
from pathexpand.target import DifferenceTarget, LogitTarget

Patch = Callable[[pytest.MonkeyPatch], None]


# --- the models the laws are run on ---------------------------------------------------------------


@cache
def example(kind: str) -> Run:
    """Give a run on which every fault of its kind shows."""
    if kind == "shortformer":
        return laws.random_model(seed=2, positions="shortformer").run([3, 1, 4, 1])
    if kind == "square":
        return laws.random_model(seed=3, d_model=3, d_head=3, n_heads=2).run([3, 1, 4])
    if kind == "cancelling":
        return cancelling().run([3, 1, 4, 1])
    if kind == "ties":
        return ties().run([1, 0, 1])
    if kind == "bidirectional":
        return laws.random_model(seed=5, direction="bidirectional").run([3, 1, 4, 1])
    return laws.random_model(seed=1).run([3, 1, 4, 1])


def cancelling() -> Model:
    """Make a model whose paths are huge and whose total is not: 1e8 + small - 1e8."""
    model = laws.random_model(seed=4)
    tensors = {name: np.array(array) for name, array in model.weights.named()}
    push = np.arange(1.0, 8.0) * 1e8
    tensors["blocks.0.attn.b_O"] = push
    tensors["blocks.1.attn.b_O"] = -push
    for name in ("W_V", "W_O"):
        tensors[f"blocks.1.attn.{name}"] = tensors[f"blocks.1.attn.{name}"] * 1e-5
    return from_state_dict(tensors, model.config)


def ties() -> Model:
    """Make a model in which many paths are worth exactly the same: its heads are all alike."""
    config = Config(n_layers=2, n_heads=2, d_model=2, d_head=1, d_vocab=2, n_ctx=4)
    one = {"W_Q": (2, 2, 1), "W_K": (2, 2, 1), "W_V": (2, 2, 1), "W_O": (2, 1, 2)}
    tensors = {"embed.W_E": np.ones((2, 2)), "unembed.W_U": np.array([[1.0, 0], [0, 1]])}
    tensors["pos_embed.W_pos"] = np.zeros((4, 2))
    for layer in range(2):
        for name, shape in one.items():
            tensors[f"blocks.{layer}.attn.{name}"] = np.full(
                shape, 0.0 if name in "W_QW_K" else 1.0
            )
        tensors[f"blocks.{layer}.attn.W_O"][:, :, 1] = 0
    return from_state_dict(tensors, config)


# --- the laws, by the name that the table of faults uses ------------------------------------------

DIFFERENCE = DifferenceTarget(1, 0)


def exact(**settings: Any) -> laws.LawResult:
    model = laws.rational_model(seed=6, **settings)
    patterns = laws.rational_patterns(model, 3, seed=7)
    return laws.check_exact_closure(model, [3, 1, 4], patterns, position=1)


LAWS: dict[str, Callable[[Run], laws.LawResult]] = {
    "closure": laws.check_closure,
    "table closure": laws.check_table_closure,
    "difference": lambda run: laws.check_table_closure(run, DIFFERENCE),
    "remainder": laws.check_remainder,
    "exact": lambda run: exact(),
    "exact shortformer": lambda run: exact(positions="shortformer"),
    "polynomial": lambda run: laws.check_polynomial_identity(layers=2, heads=1, biases=True),
    "terms": lambda run: laws.check_term_count(run.model),
    "enumeration": laws.check_enumeration_count,
    "totals": laws.check_totals,
    "top paths": lambda run: laws.check_top_paths(run, top=20),
    "few paths": lambda run: laws.check_top_paths(run, top=3),
    "short paths": lambda run: laws.check_top_paths(run, top=30, max_order=1),
    "value gauge": laws.check_value_gauge,
    "score gauge": laws.check_score_gauge,
    "permutation": laws.check_head_permutation,
    "path matrices": lambda run: laws.check_path_matrices(run.model),
    "path logits": laws.check_path_logits,
    "norms": lambda run: laws.check_norm_ranking(run.model, top=4),
    "layer sums": laws.check_layer_sums,
    "attention rows": laws.check_patterns,
    "text": lambda run: laws.check_text_round_trip(run.model),
    "JSON": laws.check_table_round_trip,
    "padding": laws.check_padding,
    "batch": laws.check_batch,
}


# --- the faults -----------------------------------------------------------------------------------


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


def layers_changed(change: Callable[[Any], Any]) -> Patch:
    """Freeze with every layer changed."""

    def broken(*args: Any, **kwargs: Any) -> FrozenSum:
        frozen = freeze(*args, **kwargs)
        return replace(frozen, layers=tuple(change(layer) for layer in frozen.layers))

    return swap(freeze, broken)


def suffix_reversed(frozen: Any, readout: Any, heads: Any) -> Any:
    suffix = value.empty_suffix(frozen, readout)
    for head in tuple(heads):
        suffix = value.prepend(suffix, frozen, head)
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
        replace(each, boundary=len(frozen.layers)) if "bias" in each.label else each
        for each in frozen.sources
    )
    asked = everything(frozen.network()) if query is None else query
    return totals_original(replace(frozen, sources=sources), readout, asked)


totals_original = total.totals


def bias_without_rows(attn: Any, patterns: Any) -> Any:
    whole = np.ones_like(patterns) / patterns.shape[-1]
    if patterns.dtype == object:
        whole = np.zeros(patterns.shape, dtype=object)
        whole[:, :, 0] = 1
    return bias_source(attn, whole)


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


def shortformer_in_values(weights: Any, config: Any, run: Any, *, row: int = 0) -> FrozenSum:
    frozen = freeze(weights, config, run, row=row)
    if config.positional_embedding_type != "shortformer":
        return frozen
    first, *others = frozen.sources
    first = replace(first, values=first.values + weights.W_pos[run.places[row]])
    return replace(frozen, sources=(first, *others))


def heads_chained(layer: Any, reads: Any, query: Any, some: int) -> Any:
    """Let each head of a layer read what the heads before it wrote; the query has one state."""
    out = reads.copy()
    for number in range(len(layer.heads)):
        out[:, 1 : some + 1] += total._through(layer, number, out[:, :some])
    return out


def source_forgotten(frozen: FrozenSum, readout: Any, query: Any = None) -> Any:
    asked = everything(frozen.network()) if query is None else query
    return totals_original(replace(frozen, sources=frozen.sources[:-1]), readout, asked)


def booked_at_zero(suffix: Any, source: Any) -> Any:
    out = suffix.row * (source.values @ suffix.vector)
    return np.roll(out, 1)


def uncentred_constant(self: LogitTarget, weights: Any, position: int) -> Any:
    found = readout_original(self, weights, position)
    constant = 0 if weights.b_U is None else weights.b_U[self.token]
    return replace(found, constant=constant)


readout_original = LogitTarget.readout


def difference_swapped(self: DifferenceTarget, weights: Any, position: int) -> Any:
    return difference_original(DifferenceTarget(self.other, self.token), weights, position)


difference_original = DifferenceTarget.readout


def first_pattern(suffix: Any, frozen: Any, head: Any) -> Any:
    layer = frozen.layers[head.layer]
    row = suffix.row @ layer.patterns[0]
    return value.Suffix(row, layer.W_V[head.index] @ (layer.W_O[head.index] @ suffix.vector))


def scaled_by_norm(suffix: Any, frozen: Any, head: Any) -> Any:
    layer = frozen.layers[head.layer]
    row = suffix.row @ layer.patterns[head.index]
    w_o = layer.W_O[head.index] / np.linalg.norm(layer.W_O[head.index])
    return value.Suffix(row, layer.W_V[head.index] @ (w_o @ suffix.vector))


def no_unembed_bias(weights: Any, config: Any) -> Network:
    network = network_of(weights, config)
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
    if weights.W_pos is not None and not mask.all():
        weights_moved = replace(weights, W_pos=np.roll(weights.W_pos, 1, axis=0))
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


def unnormalised(scores: Any, seen: Any) -> Any:
    return 1.01 * softmax_original(scores, seen)


softmax_original = dense.masked_softmax


def no_output_bias(attn: Any, stream: Any, pattern: Any) -> Any:
    return output_original(replace(attn, b_O=None), stream, pattern)


output_original = dense._attention_output


def heads_misfused(attn: Any, stream: Any, pattern: Any) -> Any:
    return output_original(replace(attn, W_O=attn.W_O[::-1]), stream, pattern)


def one_sided_scores(attn: Any, reads: Any) -> Any:
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
    source = next(each for each in frozen.sources if each.label == path.source)
    row = np.eye(frozen.positions)[position]
    for head in path.components:
        row = row @ frozen.layers[head.layer].patterns[head.index]
    stream = row @ source.values
    for head in path.components:
        layer = frozen.layers[head.layer]
        stream = (stream @ layer.W_V[head.index]) @ layer.W_O[head.index]
    return stream


def text_reversed(self: Path) -> str:
    return " > ".join((self.source, *(head.label for head in reversed(self.components))))


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

    def broken(self: Any, layer: int, nodes: Any) -> Any:
        ask = original(self, layer, nodes)
        return lambda *asked: factor * ask(*asked)

    return on(tree, "bounds", broken)


def energy_without_last_source(monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_search.rest_energy

    def broken(tree: Any, query: Any, paths: Any) -> float:
        return original(tree, query, [*paths, *query.paths(max_order=0)])

    everywhere(monkeypatch, original, broken)


@dataclass(frozen=True)
class Fault:
    """A fault, the model it shows on, and every law that must see it."""

    name: str
    patch: Patch
    caught_by: tuple[str, ...]
    on: str = "plain"


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
        swap(bias_source, bias_without_rows),
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
        layers_changed(lambda layer: replace(layer, patterns=np.swapaxes(layer.patterns, 1, 2))),
        ("closure", "table closure", "exact", "polynomial", "totals", "top paths"),
        on="bidirectional",
    ),
    Fault(
        "W_V and W_O swapped for square heads",
        layers_changed(lambda layer: replace(layer, W_V=layer.W_O, W_O=layer.W_V)),
        ("closure", "table closure", "totals", "top paths"),
        on="square",
    ),
    Fault(
        "the order of heads lost",
        layers_changed(lambda layer: replace(layer, W_O=layer.W_O[::-1])),
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
        swap(value.completed, booked_at_zero),
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
        swap(value.prepend, first_pattern),
        ("table closure", "top paths", "permutation", "exact"),
    ),
    Fault(
        "heads scaled by the norm of W_O",
        swap(value.prepend, scaled_by_norm),
        ("table closure", "top paths", "value gauge"),
    ),
    Fault("b_U missing from the network", swap(network_of, no_unembed_bias), ("terms", "exact")),
    Fault("paths counted wrongly", count_off, ("terms", "enumeration", "table closure")),
    Fault(
        "padding seen",
        swap(visible_original, mask_ignored),
        ("padding",),
    ),
    Fault("later tokens seen", swap(visible_original, later_seen), ("attention rows",)),
    Fault("padding counted as positions", swap(forward_original, places_of_all), ("padding",)),
    Fault("patterns not normalised", swap(softmax_original, unnormalised), ("attention rows",)),
    Fault(
        "b_O missing from the dense pass",
        swap(output_original, no_output_bias),
        ("layer sums", "closure", "table closure", "exact"),
    ),
    Fault(
        "heads fused in the wrong order",
        swap(output_original, heads_misfused),
        ("layer sums", "closure", "table closure", "exact"),
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


@pytest.mark.parametrize(
    "kind", ["plain", "shortformer", "square", "cancelling", "ties", "bidirectional"]
)
def test_every_law_holds_on_the_sound_engine(kind: str) -> None:
    for name, law in LAWS.items():
        result = law(example(kind))
        assert result.holds, f"{name}: {result}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    run = example(fault.on)
    fault.patch(monkeypatch)
    fresh = Run(Model(run.model.checkpoint), run.dense)
    if fault.name in RERUN:
        fresh = fresh.model.run([int(token) for token in run.tokens])
    missed = [name for name in fault.caught_by if passes(name, fresh)]
    assert fault.caught_by
    assert not missed


RERUN = {
    "shortformer positions in the dense stream",
    "later tokens seen",
    "patterns not normalised",
    "b_O missing from the dense pass",
    "heads fused in the wrong order",
    "b_U missing from the network",
}


def passes(name: str, run: Run) -> bool:
    """Say whether a law holds; a law that cannot even be run has caught the fault."""
    try:
        with np.errstate(all="ignore"):
            return LAWS[name](run).holds
    except Exception:
        return False


def test_every_law_catches_a_fault() -> None:
    caught = {name for fault in FAULTS for name in fault.caught_by}
    assert caught == set(LAWS)
