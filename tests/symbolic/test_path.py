import pickle
from itertools import pairwise

import pytest
from hypothesis import given

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic import (
    W_E,
    W_U,
    Head,
    Mlp,
    Neuron,
    Path,
    Term,
    attention,
    gate,
    io,
    ov,
    source_key,
    source_map,
)

from .strategies import paths


@given(paths())
def test_paths_survive_text_and_terms(path):
    assert Path.parse(str(path)) == path
    assert Path.parse(str(path).replace(" > ", "→")) == path
    assert Path.from_term(path.term()) == path
    assert path.term().order == path.order == len(path.components)


def test_the_words_are_in_application_order():
    term = Path.parse("embed > L0H1 > L1H2").term()
    assert term.position_word == (attention("L0H1"), attention("L1H2"))
    assert term.linear_word == (W_E, ov("L0H1"), ov("L1H2"), W_U)
    mixed = Path.parse("L0Mbias > L1H2 > L1N30 > L2M").term()
    assert mixed.position_word == (attention("L1H2"), gate("L1N30"), gate("L2M"))
    middle = (ov("L1H2"), io("L1N30"), io("L2M"))
    assert mixed.linear_word == (source_map("L0Mbias"), *middle, W_U)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("embed", "direct"),
        ("b_U", "direct"),
        ("pos>L0H0", "head"),
        ("embed>L0H0>L1H0", "virtual head"),
        ("L0M", "direct"),
        ("pos>L0N0", "neuron"),
        ("type>L0M", "MLP"),
        ("embed>L0H0>L0N0", "composed"),
        ("embed>L0N0>L1H0>L2H1", "composed"),
        ("embed>L0M>L1M", "composed"),
    ],
)
def test_kinds(text, kind):
    assert Path.parse(text).kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "embed > L1H0 > L0H0",
        "embed > L1H0 > L1H1",
        "L0bias > L0H0",
        "L2bias > L1H0 > L3H0",
        "b_U > L0H0",
        "embed > L1N0 > L1H0",
        "embed > L1N0 > L1N1",
        "embed > L1N0 > L1M",
        "embed > L1M > L1M",
        "L1bias > L1H0",
        "L1bias > L0N0",
        "L1M > L1N0",
        "L1M > L1H0",
        "L1Mbias > L1M",
        "b_U > L0N0",
    ],
)
def test_paths_no_network_has_are_refused(text):
    with pytest.raises(CompositionError):
        Path.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embed > L1H0 > L1H1", "L1H1 after L1H0: wanted layer 2 or later, got L1H1"),
        ("embed > L1H0 > L0N5", "L0N5 after L1H0: wanted layer 1 or later, got L0N5"),
        ("L1bias > L0N5", "L0N5 after L1bias: wanted layer 1 or later, got L0N5"),
        ("L1M > L1N5", "L1N5 after L1M: wanted layer 2 or later, got L1N5"),
        ("b_U > L0M", "path from b_U: wanted no components, .* got L0M"),
    ],
)
def test_what_cannot_follow_is_said(text, message):
    with pytest.raises(CompositionError, match=f"^{message}$"):
        Path.parse(text)


@pytest.mark.parametrize(
    "text",
    ["L1bias > L1N0", "L1bias > L1M > L2H0", "embedbias > L0H3 > L0N9", "L1Mbias > L2H0 > L2N1"],
)
def test_a_layer_is_passed_heads_first(text):
    assert str(Path.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "embed >", "> L0H0", "L0H0", "embed > l0h0", "embed > L01H0", "embed > L0N"),
        *("embed > L0M0", "embed > L0Mbias", "L0N3", "L0Hbias", "embed > embed"),
    ],
)
def test_text_that_is_no_path_is_refused_with_the_text_in_the_message(text):
    with pytest.raises(NotationError, match="path"):
        Path.parse(text)


def test_wrong_components_cannot_be_built():
    with pytest.raises(CompositionError):
        Path("embed", [Head(0, 0)])
    with pytest.raises(CompositionError):
        Path("embed", ("L0H0",))
    with pytest.raises(NotationError, match="source: wanted embed, pos, type, embedbias, b_U, or"):
        Path("L0H0")


@pytest.mark.parametrize(
    "term",
    [
        Term((), ()),
        Term((), (W_E,)),
        Term((attention("L0H0"),), (W_E, W_U)),
        Term((attention("L0H0"),), (W_E, ov("L0H1"), W_U)),
        Term((gate("L0N0"),), (W_E, ov("L0H0"), W_U)),
        Term((gate("L0N0"),), (W_E, io("L0M"), W_U)),
        Term((gate("L0N0"),), (ov("L0H0"), io("L0N0"), W_U)),
        Term((gate("L0N0"), attention("L0H0")), (W_E, io("L0N0"), ov("L0H0"), W_U)),
        Term((attention("L1H0"), attention("L0H0")), (W_E, ov("L1H0"), ov("L0H0"), W_U)),
    ],
)
def test_terms_that_are_no_paths_are_refused(term):
    with pytest.raises(CompositionError):
        Path.from_term(term)


def test_paths_sort_by_order_source_and_components():
    texts = [
        *("embed", "pos", "type", "embedbias", "L2bias", "L2M", "L2Mbias", "L10bias", "b_U"),
        *("embed > L2H3", "embed > L2H10", "embed > L2N0", "embed > L2N11", "embed > L2M"),
        *("embed > L3H0", "pos > L0H0", "L2M > L3N0", "embed > L0H0 > L5N1"),
        *("embed > L0N0 > L5H1", "pos > L0H0 > L0N0"),
    ]
    assert [str(path) for path in sorted(map(Path.parse, reversed(texts)))] == texts


@given(paths())
def test_keys_rise_along_a_path(path):
    keys = [source_key(path.source), *(each.key for each in path.components)]
    assert all(before < after for before, after in pairwise(keys))


def test_paths_are_values():
    path = Path("embed", (Head(0, 1), Neuron(0, 2), Mlp(1)))
    again = pickle.loads(pickle.dumps(path))
    assert again == path and hash(again) == hash(path)
    assert path != Path("embed", (Head(0, 1), Neuron(0, 2)))
    assert len({path, again, Path("pos", path.components)}) == 2
