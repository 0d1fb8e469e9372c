"""Each claim of the tutorial is seen to fail: on models that learned nothing, or a broken engine.

Cells run in this process. Each `assert` becomes a claim by itself, each side of an `and` too, and
what it says is noted; a cell that cannot go on is left, as its claims are then none that hold.
"""

import ast
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import nbformat
import numpy as np
import pytest

import pathexpand
from pathexpand.api import Model, Run, load
from pathexpand.features import Graph
from pathexpand.tutorial import notebooks

NOTEBOOKS = {notebook.file: notebook.text for notebook in notebooks()}
Patch = pytest.MonkeyPatch


class Claims(ast.NodeTransformer):
    """Turns each assert into a call that notes whether it holds, and does not stop."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        parts = node.test.values if both else [node.test]  # type: ignore[attr-defined]
        found = []
        for part in parts:
            call = ast.parse(f"_claim({ast.unparse(part)!r}, lambda: None)").body[0]
            call.value.args[1].body = part  # type: ignore[attr-defined]
            found.append(ast.fix_missing_locations(ast.copy_location(call, node)))
        return found


def said(file: str) -> dict[str, bool | None]:
    """Run a notebook's cells; give each claim with whether it held, None if it was not weighed."""
    claims: dict[str, bool | None] = {}

    def claim(text: str, holds: Callable[[], Any]) -> None:
        with suppress(Exception):  # what cannot be weighed neither holds nor fails
            claims[text] = bool(holds()) and claims[text] is not False

    names: dict[str, Any] = {"_claim": claim, "__name__": "__main__"}
    for number, cell in enumerate(nbformat.reads(NOTEBOOKS[file], as_version=4).cells):
        if cell.cell_type != "code" or "exercise" in cell.metadata.get("tags", []):
            continue
        lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
        tree = Claims().visit(ast.parse("\n".join(lines)))
        for each in ast.walk(tree):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "_claim":
                claims.setdefault(each.args[0].value, None)  # type: ignore[attr-defined]
        with suppress(Exception), redirect_stdout(StringIO()):
            exec(compile(tree, f"{file}, cell {number}", "exec"), names)
    return claims


# --- what is broken ------------------------------------------------------------------------------


@cache
def untrained(name: str) -> Model:
    """Give a model of the same form with random weights of the same sizes."""
    model = load(name)
    rng = np.random.default_rng(5)
    tensors = {
        key: rng.normal(size=array.shape) * array.std() for key, array in model.weights.named()
    }
    return pathexpand.from_state_dict(tensors, model.config, tokenizer=model.tokenizer)


def no_training(patch: Patch) -> None:
    """The models of the package are of random weights."""
    patch.setattr(pathexpand, "load", untrained)
    real = Run.graph
    patch.setattr(Run, "graph", lambda run, **options: real(run, **options, force=True))


def other_depths(patch: Patch) -> None:
    """Each model is one of another number of layers."""
    others = {"zero-layer": "one-layer", "one-layer": "two-layer", "two-layer": "one-layer"}
    patch.setattr(pathexpand, "load", lambda name: load(others[name]))


def another_forward_pass(patch: Patch) -> None:
    """The dense logits are not what the weights give."""
    import pathexpand.api.run as run
    import pathexpand.features.graph as graph

    for place in (run, graph):
        real = place.final_logits
        patch.setattr(
            place,
            "final_logits",
            lambda *given, real=real: real(*given) + 0.3 * np.cos(np.arange(len(real(*given)))),
        )


def wrong_values(patch: Patch) -> None:
    """Single paths, and what single tokens bring, are not what they are."""
    import pathexpand.api.run as run

    real = run.path_value_by_token
    patch.setattr(run, "path_value_by_token", lambda *given: 1.5 * np.roll(real(*given), 3) + 0.01)


def wrong_search(patch: Patch) -> None:
    """The search says it is done when it is not, and the other way round; its bound is too low."""
    import pathexpand.api.run as run

    real = run.rank

    def rank(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        own = found.found
        other = replace(own, bound=own.bound / 2, certified=not own.certified, visited=10**6)
        return replace(found, found=other)

    patch.setattr(run, "rank", rank)


def lowered_when_stopped(patch: Patch) -> None:
    """A search that is cut short gives a bound that is too low."""
    import pathexpand.api.run as run

    real = run.rank

    def rank(*given: Any, budget: Any = None, **options: Any) -> Any:
        found = real(*given, budget=budget, **options)
        if budget is None:
            return found
        return replace(found, found=replace(found.found, bound=found.found.bound / 20))

    patch.setattr(run, "rank", rank)


def fewer_listed(patch: Patch) -> None:
    """Tables list fewer paths than asked for, and miss the first."""
    real = Run.paths

    def paths(run: Run, *given: Any, top: int = 10, **options: Any) -> Any:
        found = real(run, *given, top=max(top - 1, 1), **options)
        rows = found.rows[1:] + found.rows[:1]
        ranked = [replace(row, rank=n) for n, row in enumerate(rows, start=1)]
        object.__setattr__(found, "rows", tuple(ranked))
        return found

    patch.setattr(Run, "paths", paths)


def wrong_count(patch: Patch) -> None:
    """Paths are counted wrong."""
    real = Model.count
    patch.setattr(Model, "count", lambda model, query=None: real(model, query) - 1)


def queries_not_asked(patch: Patch) -> None:
    """A query is taken for all paths."""
    from pathexpand.symbolic.query import everything

    patch.setattr(Model, "query", lambda model, text=None: everything(model.network))


def another_model_with_its_mlps(patch: Patch) -> None:
    """Another way to take MLPs gives another model."""

    def with_mlp(model: Model, mlp: Any) -> Model:
        bias = np.arange(model.config.d_vocab_out, dtype=float)
        weights = replace(model.weights, b_U=bias)
        return Model(replace(model.checkpoint, weights=weights), mlp=mlp)

    patch.setattr(Model, "with_mlp", with_mlp)


def offsets_not_looked_at(patch: Patch) -> None:
    """A QK circuit takes one offset for all."""
    from pathexpand.api.circuits import Circuits
    from pathexpand.circuits.circuit import qk

    def alike(circuits: Circuits, head: str, offset: int | None = None) -> Any:
        return qk(circuits.checkpoint, head, offset=1)

    patch.setattr(Circuits, "qk", alike)


def composed_alone(patch: Patch) -> None:
    """A QK circuit sees its keys through L0H3, asked for or not."""
    from pathexpand.api.circuits import Circuits
    from pathexpand.circuits.circuit import qk

    def through(circuits: Circuits, head: str, **_: Any) -> Any:
        return qk(circuits.checkpoint, head, key="L0H3")

    patch.setattr(Circuits, "qk", through)


def wrong_effects(patch: Patch) -> None:
    """Skip-trigrams are worth something else than attention times logit."""
    import pathexpand.circuits.skip_trigrams as trigrams

    real = trigrams.SkipTrigram

    def other(a: int, b: int, c: int, effect: float, *factors: float) -> Any:
        return real(a, b, c, 1.1 * effect, *factors)

    patch.setattr(trigrams, "SkipTrigram", other)


def wrong_sums(patch: Patch) -> None:
    """Heads' totals are too large, raw logits are centred, and a logit lens keeps the scale."""
    totals, paths = Run.head_totals, Run.paths

    def head_totals(run: Run, **options: Any) -> Any:
        return {head: 1.01 * value for head, value in totals(run, **options).items()}

    def centred_paths(run: Run, *given: Any, centred: Any = None, **options: Any) -> Any:
        return paths(run, *given, **options)

    def logit_lens(run: Run, layer: int) -> Any:
        return run.path_logits("embed") + run.path_logits("pos")

    patch.setattr(Run, "head_totals", head_totals)
    patch.setattr(Run, "paths", centred_paths)
    patch.setattr(Run, "logit_lens", logit_lens)


def wrong_edges(patch: Patch) -> None:
    """Edges of a graph are too large, their paths in no order, and pruning keeps all nodes."""
    real = Run.graph

    def graph(run: Run, **options: Any) -> Any:
        found = real(run, **options)
        return replace(found, weights=1.5 * found.weights)

    def reversed_paths(own: Graph, *given: Any) -> Any:
        found = paths(own, *given)
        return replace(found, paths=found.paths[::-1])

    paths = Graph.paths
    patch.setattr(Run, "graph", graph)
    patch.setattr(Graph, "paths", reversed_paths)
    patch.setattr(pathexpand, "prune", lambda graph: graph)


def scores_that_do_not_close(patch: Patch) -> None:
    """Pairs of paths do not add up to the score, nor to the graph's, and are not certified."""
    import pathexpand.api.scores as scores

    real = scores.expand_score

    def expand_score(*given: Any, top: int, **options: Any) -> Any:
        found = real(*given, top=top - 1, **options)
        return replace(found, dense=found.dense + 1, found=replace(found.found, certified=False))

    patch.setattr(scores, "expand_score", expand_score)
    attention = Graph.attention

    def other(own: Graph, *given: Any, **options: Any) -> Any:
        found = attention(own, *given, **options)
        return replace(found, score=found.score + 1)

    patch.setattr(Graph, "attention", other)


NEEDED: dict[str, tuple[Callable[[Patch], None], ...]] = {
    "1-zero-layers.ipynb": (no_training, other_depths, another_forward_pass),
    "2-one-layer.ipynb": (no_training, other_depths, another_forward_pass, wrong_effects),
    "3-two-layers.ipynb": (
        no_training,
        other_depths,
        another_forward_pass,
        wrong_search,
        composed_alone,
        scores_that_do_not_close,
    ),
    "4-what-is-exact.ipynb": (no_training, another_forward_pass, wrong_sums, wrong_search),
    "5-mlps-and-rotary.ipynb": (
        another_forward_pass,
        another_model_with_its_mlps,
        offsets_not_looked_at,
        scores_that_do_not_close,
    ),
    "6-certified-search.ipynb": (
        another_forward_pass,
        wrong_search,
        lowered_when_stopped,
        fewer_listed,
        wrong_count,
        queries_not_asked,
    ),
    "7-feature-graphs.ipynb": (
        no_training,
        another_forward_pass,
        wrong_edges,
        scores_that_do_not_close,
    ),
    "8-circuits-questions.ipynb": (
        no_training,
        another_forward_pass,
        composed_alone,
        scores_that_do_not_close,
    ),
}


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_every_claim_holds_and_is_seen_to_fail(file: str) -> None:
    claims = said(file)
    assert len(claims) >= 6
    assert [text for text, holds in claims.items() if not holds] == []
    left = set(claims)
    for broken in NEEDED[file]:
        with pytest.MonkeyPatch.context() as patch:
            broken(patch)
            fallen = {text for text, holds in said(file).items() if holds is False}
        assert fallen & left, f"{broken.__name__} is not needed"
        left -= fallen
    assert left == set(), "never seen to fail"
