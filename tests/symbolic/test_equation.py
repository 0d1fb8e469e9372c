import re

import pytest
from hypothesis import given

from pathexpand.errors import NotationError
from pathexpand.symbolic import Network, equation, parse_term

from .strategies import networks

PAPER = {
    0: ["T = Id ⊗ W_U W_E"],
    1: ["T = Id ⊗ W_U W_E", "  + Σ_{h∈L0} A^h ⊗ W_U W_OV^h W_E"],
    2: [
        "T = Id ⊗ W_U W_E",
        "  + Σ_{h∈L0∪L1} A^h ⊗ W_U W_OV^h W_E",
        "  + Σ_{h2∈L1} Σ_{h1∈L0} A^h2 A^h1 ⊗ W_U W_OV^h2 W_OV^h1 W_E",
    ],
    3: [
        "T = Id ⊗ W_U W_E",
        "  + Σ_{h∈L0∪L1∪L2} A^h ⊗ W_U W_OV^h W_E",
        "  + Σ_{h1<h2} A^h2 A^h1 ⊗ W_U W_OV^h2 W_OV^h1 W_E",
        "  + Σ_{h1<h2<h3} A^h3 A^h2 A^h1 ⊗ W_U W_OV^h3 W_OV^h2 W_OV^h1 W_E",
    ],
}


@pytest.mark.parametrize("layers", PAPER)
def test_the_expanded_form_is_the_papers(layers):
    text = equation(Network.attention_only(layers, 12), form="expanded")
    lines = [re.sub(r" +\[[\d,]+\]$", "", line) for line in text.split("\n\n")[0].splitlines()]
    assert lines == PAPER[layers]


@given(networks(max_layers=5))
def test_the_numbers_in_the_equation_add_up_to_the_number_of_paths(network):
    text = equation(network, form="expanded").split("\n\n")[0]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\[([\d,]+)\]", text)]
    assert sum(numbers) == network.count()


@pytest.mark.parametrize("layers", [0, 1, 2, 3, 12, 96])
@pytest.mark.parametrize("notation", ["paper", "code"])
def test_lines_fit_a_terminal(layers, notation):
    text = equation(Network.attention_only(layers, 12), notation=notation)
    assert max(map(len, text.splitlines())) <= 84


def test_code_order_reverses_the_linear_word_alone():
    text = equation(Network.attention_only(2, 3), notation="code")
    assert "A[h2] A[h1] ⊗ W_E OV[h1] OV[h2] W_U" in text
    assert "(Id ⊗ W_U) @ (Id ⊗ Id + Σ_{h∈L1} A[h] ⊗ OV[h]) @" in text


def test_sources_have_their_rows():
    network = Network.attention_only(2, 3, positions=True, biases=True, unembed_bias=True)
    text = equation(network)
    assert "X_1 = (Id ⊗ Id + Σ_{h∈L0} A^h ⊗ W_OV^h) X_0 + Id ⊗ b^L0" in text
    assert "T = (Id ⊗ W_U) X_2 + Id ⊗ b_U" in text
    assert "  + Σ_{h∈L1} A^h ⊗ W_U W_OV^h b^L0" in text


@given(networks())
def test_ascii_text_is_ascii_and_latex_braces_match(network):
    assert equation(network, ascii=True).isascii()
    text = equation(network, format="latex")
    assert text.isascii() and text.count("{") == text.count("}")


def test_the_direct_row_is_a_term_that_reads_back():
    row = equation(Network.attention_only(1, 1), form="expanded").splitlines()[0]
    assert parse_term(row[4:].split("  ")[0]).order == 0


@pytest.mark.parametrize("option", ["notation", "format", "form"])
def test_unknown_choices_are_refused(option):
    with pytest.raises(NotationError, match=option):
        equation(Network.attention_only(1, 1), **{option: "other"})
