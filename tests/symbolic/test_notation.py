import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathexpand.errors import NotationError
from pathexpand.symbolic import (
    INPUT,
    STREAM,
    Expansion,
    Path,
    Term,
    expand,
    format_expansion,
    format_term,
    latex,
    parse_expansion,
    parse_term,
)

from .strategies import networks, paths, steps

NOTATIONS = st.sampled_from(["paper", "code"])


@given(paths(), NOTATIONS, st.booleans())
def test_terms_survive_text(path, notation, ascii):
    text = format_term(path.term(), notation=notation, ascii=ascii)
    assert parse_term(text, notation=notation) == path.term()
    assert text.isascii() or not ascii


@given(steps() | networks().map(lambda network: network.expression()), NOTATIONS, st.data())
def test_expansions_survive_text(expression, notation, data):
    options = {name: data.draw(st.booleans(), label=name) for name in ("ascii", "lines")}
    expansion = expand(expression)
    text = format_expansion(expansion, notation=notation, **options)
    again = parse_expansion(text, notation=notation)
    assert again == expansion
    assert text.isascii() or not options["ascii"]


def test_the_two_notations_print_as_the_paper_and_as_arrays():
    term = Path.parse("embed > L0H1 > L1H2").term()
    assert format_term(term) == "A^L1H2 A^L0H1 ⊗ W_U W_OV^L1H2 W_OV^L0H1 W_E"
    code = "A[L1H2] A[L0H1] ⊗ W_E OV[L0H1] OV[L1H2] W_U"
    assert format_term(term, notation="code") == code
    bias = Path.parse("L0bias").term()
    assert format_term(bias) == "Id ⊗ W_U b^L0"
    assert format_term(bias, notation="code", ascii=True) == "Id (x) b[L0] W_U"


@pytest.mark.parametrize(
    ("path", "paper", "code", "tex"),
    [
        (
            "type > L0H1 > L0N23",
            "G^L0N23 A^L0H1 ⊗ W_U W_IO^L0N23 W_OV^L0H1 W_type",
            "G[L0N23] A[L0H1] ⊗ W_type OV[L0H1] IO[L0N23] W_U",
            r"G^{L0N23} A^{L0H1} \otimes W_U W_{IO}^{L0N23} W_{OV}^{L0H1} W_{\mathrm{type}}",
        ),
        (
            "L0Mbias > L1M",
            "G^L1M ⊗ W_U W_IO^L1M b^L0M",
            "G[L1M] ⊗ b[L0M] IO[L1M] W_U",
            r"G^{L1M} \otimes W_U W_{IO}^{L1M} b^{L0M}",
        ),
        ("L0M", "Id ⊗ W_U M^L0", "Id ⊗ M[L0] W_U", r"\mathrm{Id} \otimes W_U M^{L0}"),
        (
            "embedbias",
            "Id ⊗ W_U b^embed",
            "Id ⊗ b[embed] W_U",
            r"\mathrm{Id} \otimes W_U b^{\mathrm{embed}}",
        ),
    ],
)
def test_neurons_mlps_and_their_sources(path, paper, code, tex):
    term = Path.parse(path).term()
    assert format_term(term) == paper
    assert format_term(term, notation="code") == code
    assert latex(term) == tex


def test_coefficients_and_signs():
    term = Path.parse("embed").term()
    other = Path.parse("pos").term()
    expansion = expand(-2 * term + 3 * other)
    assert format_expansion(expansion) == "-2 · Id ⊗ W_U W_E + 3 · Id ⊗ W_U W_pos"
    assert format_expansion(expand(-term)) == "-Id ⊗ W_U W_E"
    assert latex(expand(-2 * term)) == r"-2 \cdot \mathrm{Id} \otimes W_U W_E"
    assert latex(other) == r"\mathrm{Id} \otimes W_U W_{\mathrm{pos}}"


@pytest.mark.parametrize("space", [INPUT, STREAM])
def test_identities_and_zeros_keep_their_spaces(space):
    term = Term((), (), at=space)
    assert parse_term(format_term(term)) == term
    zero = Expansion({}, space, space)
    assert parse_expansion(format_expansion(zero, ascii=True)) == zero


@pytest.mark.parametrize(
    ("text", "notation", "column"),
    [
        ("", "paper", 1),
        ("Id W_U", "paper", 4),
        ("Id ⊗", "paper", 5),
        ("Id ⊗ W_X W_E", "paper", 6),
        ("Id ⊗ W_E W_U", "paper", 6),
        ("Id ⊗ W_U W_E", "code", 10),
        ("A^L0H0 ⊗ W_E OV[L0H0] W_U", "code", 1),
        ("A^L0H0 ⊗ W_U OV[L0H0] W_E", "paper", 14),
        ("A^L0H0 B^L0H1 ⊗ W_E", "paper", 8),
        ("Id ⊗ W_E; Id ⊗ W_E", "paper", 9),
        ("2 Id ⊗ W_E", "paper", 3),
        ("Id ⊗ W_E + Id ⊗ W_U", "paper", 12),
        ("Id ⊗ b^L01", "paper", 6),
        ("A^L0N3 ⊗ W_E", "paper", 1),
        ("G^L0H3 ⊗ W_E", "paper", 1),
        ("G^L0 ⊗ W_E", "paper", 1),
        ("G^L0N3 ⊗ W_OV^L0N3", "paper", 10),
        ("G^L0N3 ⊗ W_IO^L0H3", "paper", 10),
        ("G[L0N3] ⊗ W_IO[L0N3]", "code", 11),
        ("Id ⊗ M^L0M", "paper", 6),
        ("Id ⊗ b^pos", "paper", 6),
        ("Id ⊗ M", "paper", 6),
    ],
)
def test_mistakes_are_pointed_at(text, notation, column):
    with pytest.raises(NotationError, match=rf"^column {column} of"):
        parse_expansion(text, notation=notation)


def test_mistakes_are_pointed_at_on_their_line():
    with pytest.raises(NotationError, match=r"^line 2, column 3 of '\+ Ix ⊗ W_E'"):
        parse_expansion("Id ⊗ W_E\n+ Ix ⊗ W_E")


@pytest.mark.parametrize("act", [lambda: parse_term("Id ⊗ Id", notation="rows"), lambda: latex(3)])
def test_unknown_choices_are_refused(act):
    with pytest.raises(NotationError):
        act()
