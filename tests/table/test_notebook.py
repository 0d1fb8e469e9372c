"""What a notebook shows of each thing that a user gets back: light, escaped, and no formula by
accident."""

import pickle
from html.parser import HTMLParser
from typing import Any

import pytest

import pathexpand
from pathexpand.features import feature_qk
from pathexpand.symbolic import Network, Path, equation, expand
from pathexpand.symbolic.component import Head, Mlp, Neuron
from pathexpand.table.markup import card, html
from pathexpand.table.sheet import Column, Line, Sheet

LIGHT = 60_000  # bytes
HOSTILE = "</script><img src=x onerror=alert(1)> $x$ \\(y\\)"


class Tags(HTMLParser):
    """Collects the tags of a text, and sees that each is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[str] = set()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes += attributes
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(text: str) -> set[str]:
    parser = Tags()
    parser.feed(text)
    assert not parser.open
    assert not any(name.startswith("on") for name, _ in parser.attributes)
    return parser.found


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    model = pathexpand.load("two-layer")
    run = model.run("Humpty $ Dumpty $ sat on a <b> wall. Humpty D")
    circuits, graph = model.circuits, run.graph()
    units = pathexpand.load_units("two-layer")
    return {
        "model": model,
        "run": run,
        "circuits": circuits,
        "OV": circuits.ov("L1H0"),
        "QK": circuits.qk("L1H0"),
        "entries": circuits.ov("L1H0").top(3),
        "directions": circuits.ov("L1H0").directions(2),
        "bigrams": circuits.bigrams(),
        "skip-trigrams": circuits.skip_trigrams("L1H0"),
        "composition": circuits.composition("K", samples=20),
        "copying": circuits.copying(),
        "plane": circuits.induction_plane(),
        "detection": circuits.detect(batch=2),
        "deletions": run.deletions(),
        "overlap": circuits.overlap("L0H3", "L1H0.k"),
        "importance": circuits.importance(["to be or not to be"]),
        "paths": run.paths(top=3),
        "norms": model.paths(top=3),
        "totals": run.totals_table(by="token"),
        "scores": run.scores("L1H0"),
        "why": run.why("L1H0"),
        "data set": model.dataset_paths(["to be", "that is the"], top=2),
        "graph": graph,
        "attention": graph.attention("L1H0", key=6),
        "features": feature_qk(model.checkpoint, units, "L1H0", 1, 1),
        "head": Head(1, 0),
        "neuron": Neuron(0, 3),
        "MLP": Mlp(2),
        "path": Path.parse("embed > L0H1"),
    }


NAMES = (
    *("model", "run", "circuits", "OV", "QK", "entries", "directions", "bigrams", "skip-trigrams"),
    *("composition", "copying", "plane", "detection", "deletions", "overlap", "importance"),
    *("paths", "norms", "totals", "scores", "why", "data set", "graph", "attention", "features"),
    *("head", "neuron", "MLP", "path"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_it(name: str, things: dict[str, Any]) -> None:
    shown = things[name]._repr_html_()
    assert 0 < len(shown) < LIGHT
    assert tags(shown) <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert "color" not in shown  # light or dark, as the notebook is
    assert "$" not in shown or 'class="pathexpand tex2jax_ignore mathjax_ignore"' in shown


def test_a_prompt_is_shown_token_by_token(things: dict[str, Any]) -> None:
    shown = things["run"]._repr_html_()
    assert "' D'" in shown.replace("&#x27;", "'") and "<b>" not in shown


def test_nothing_of_a_token_is_markup() -> None:
    column = Column("token", (HOSTILE,), literal=True)
    for shown in (
        html(Sheet((Line("a", HOSTILE),), (column,), (), (HOSTILE,), True)),
        card([Line("prompt", HOSTILE)], HOSTILE),
    ):
        assert not tags(shown) & {"img", "script"} and "tex2jax_ignore" in shown


def test_a_model_may_have_any_name(things: dict[str, Any]) -> None:
    config = {"model_name": HOSTILE, "n_layers": 0, "d_model": 2, "n_ctx": 4, "d_vocab": 3}
    config |= {"n_heads": 1, "d_head": 2, "attn_only": True, "normalization_type": None}
    config |= {"positional_embedding_type": "shortformer"}
    tensors = {"embed.W_E": [[1.0, 2.0]] * 3, "unembed.W_U": [[1.0] * 3] * 2}
    tensors |= {"pos_embed.W_pos": [[0.0, 0.0]] * 4}
    import numpy as np

    model = pathexpand.from_state_dict({k: np.array(v) for k, v in tensors.items()}, config)
    for thing in (model, model.run([1, 2]), model.circuits, model.circuits.bigrams()):
        assert not tags(thing._repr_html_()) & {"img", "script"}


@pytest.mark.parametrize(
    "network",
    [
        Network.attention_only(2, 12),
        Network.attention_only(12, 12, positions=True, biases=True, unembed_bias=True),
        Network.transformer(12, 12, 3072, mlp="neurons", biases=True),
        Network.transformer(3, 4, mlp="source"),
    ],
    ids=repr,
)
def test_equations_are_formulas(network: Network) -> None:
    text = equation(network)
    shown = text._repr_latex_()  # type: ignore[attr-defined]
    assert shown.startswith("$$\\begin{aligned}") and shown.endswith("\\end{aligned}$$")
    assert shown.count("{") == shown.count("}") and len(shown) < LIGHT
    assert shown == network._repr_latex_() and "otimes" in shown
    assert isinstance(text, str) and pickle.loads(pickle.dumps(text)) == text
    assert type(equation(network, format="latex")) is str  # the source, to be copied
    assert len(repr(network)) < 300


def test_expansions_are_formulas_and_light() -> None:
    small = expand(Network.attention_only(2, 2).expression())
    assert small._repr_latex_().count("otimes") == 9 and "cdots" not in small._repr_latex_()
    large = expand(Network.attention_only(3, 12).expression())
    shown = large._repr_latex_()
    assert shown.count("otimes") == 24 and "2,197 terms in all" in shown
    assert len(repr(large)) < 400 and "2,197 terms" in repr(large)
    term = next(iter(small))
    assert term._repr_latex_() == "$$\\mathrm{Id} \\otimes W_U W_E$$"
    minus = expand(-1 * Network.attention_only(1, 1).expression())
    assert "&-" in minus._repr_latex_() and "+ -" not in minus._repr_latex_()
    nothing = expand(term - term)
    assert nothing._repr_latex_().count("&0") == 1


def test_large_things_are_short_at_a_prompt(things: dict[str, Any]) -> None:
    run = things["run"]
    network = Network.transformer(12, 12, 3072, mlp="neurons")
    certificate = pathexpand.certify(run, run.searched_paths(top=3))
    for thing in (
        run,
        run.total(),
        run.sample(50),
        network,
        network.expression(),
        run.model.checkpoint,
        certificate,
    ):
        assert len(repr(thing)) < 2_000
