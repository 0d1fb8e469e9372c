import pytest
from hypothesis import given

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic import W_E, W_U, Head, Path, Term, attention, ov

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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("embed", "direct"),
        ("b_U", "direct"),
        ("pos>L0H0", "head"),
        ("embed>L0H0>L1H0", "virtual head"),
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
    ],
)
def test_paths_no_network_has_are_refused(text):
    with pytest.raises(CompositionError):
        Path.parse(text)


@pytest.mark.parametrize("text", ["", "embed >", "> L0H0", "L0H0", "embed > l0h0", "embed > L01H0"])
def test_text_that_is_no_path_is_refused_with_the_text_in_the_message(text):
    with pytest.raises(NotationError, match="path"):
        Path.parse(text)


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (0.5, 0), ("0", 0)])
def test_wrong_heads_cannot_be_built(pair):
    with pytest.raises(NotationError):
        Head(*pair)


def test_wrong_components_cannot_be_built():
    with pytest.raises(CompositionError):
        Path("embed", [Head(0, 0)])
    with pytest.raises(CompositionError):
        Path("embed", ("L0H0",))


@pytest.mark.parametrize(
    "term",
    [
        Term((), ()),
        Term((), (W_E,)),
        Term((attention("L0H0"),), (W_E, W_U)),
        Term((attention("L0H0"),), (W_E, ov("L0H1"), W_U)),
        Term((attention("L1H0"), attention("L0H0")), (W_E, ov("L1H0"), ov("L0H0"), W_U)),
    ],
)
def test_terms_that_are_no_paths_are_refused(term):
    with pytest.raises(CompositionError):
        Path.from_term(term)


def test_paths_sort_by_order_source_and_heads():
    texts = [
        "embed",
        "pos",
        "L2bias",
        "L10bias",
        "b_U",
        "embed > L2H3",
        "embed > L2H10",
        "pos > L0H0",
    ]
    assert [str(path) for path in sorted(map(Path.parse, reversed(texts)))] == texts
