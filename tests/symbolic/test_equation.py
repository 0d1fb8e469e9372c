import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pathexpand.errors import NotationError
from pathexpand.symbolic import Head, Mlp, Network, Neuron, Source, equation, expand, parse_term
from pathexpand.symbolic.equation import _number

from .reading import read_factored, read_rows
from .strategies import attention_networks, networks

SIZES = st.sampled_from([1, 2, 0])

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


@settings(deadline=None)
@given(networks(heads=SIZES) | attention_networks(max_heads=2))
def test_the_printed_sums_add_up_to_the_network(network):
    assume(sum(map(bool, network.stages)) <= 3)  # longer words are written with an ellipsis
    text = equation(network, form="expanded")
    assert read_rows(text, network) == expand(network.expression())


@pytest.mark.parametrize("mlp", ["frozen", "neurons"])
@pytest.mark.parametrize("constants", [1, 2])
def test_a_constant_says_what_comes_after_it(mlp, constants):
    whole = Network.transformer(3, 1, 2, mlp=mlp, parallel=True, biases=True)
    for born in (whole.sources[1 : 1 + constants], whole.sources[2 : 2 + constants]):
        network = Network(whole.stages, (whole.sources[0], *born))
        text = equation(network, form="expanded")
        assert re.search(r"Σ_\{b\^L0M?<c1<c2\} ", text)
        assert read_rows(text, network) == expand(network.expression())


def test_a_constant_of_an_attention_only_network_says_so_by_its_layer():
    network = Network.attention_only(5, 2)
    network = Network(network.stages, (*network.sources, Source("L1bias", 2)))
    assert "Σ_{L1<h1<h2} A^h2 A^h1 ⊗ W_U W_OV^h2 W_OV^h1 b^L1" in equation(network)


@settings(deadline=None)
@given(networks(heads=SIZES) | attention_networks(max_heads=2))
def test_the_printed_factors_multiply_out_to_the_network(network):
    text = equation(network, form="factored")
    assume("…" not in text.split("\n\n")[0])
    assert read_factored(text, network) == expand(network.expression())


@pytest.mark.parametrize("mlp", ["source", "frozen", "neurons"])
@pytest.mark.parametrize("parallel", [False, True])
def test_what_every_layer_does_is_said_once(mlp, parallel):
    network = Network.transformer(4, 1, 1, mlp=mlp, parallel=parallel, biases=True)
    text = equation(network, form="factored")
    block = text.split("\n\n")[0]
    assert len(re.findall("^[XT]", block, re.MULTILINE)) == (
        3 if parallel or mlp == "source" else 4
    )
    assert "(l = 0…3)" in block
    assert read_factored(text, network) == expand(network.expression())


def test_layers_that_differ_are_said_one_by_one():
    network = Network.transformer(4, 1, 1, mlp="neurons", biases=True)
    for sources in (network.sources[:-1], network.sources[:2] + network.sources[3:]):
        other = Network(network.stages, sources)
        text = equation(other, form="factored")
        assert "X_8 = " in text and "(l = " not in text
        assert read_factored(text, other) == expand(other.expression())


@pytest.mark.parametrize("layers", [0, 1, 2, 3, 12, 96])
@pytest.mark.parametrize("notation", ["paper", "code"])
@pytest.mark.parametrize("mlp", [None, "source", "frozen", "neurons"])
@pytest.mark.parametrize("parallel", [False, True])
def test_lines_fit_a_terminal(layers, notation, mlp, parallel):
    network = Network.attention_only(layers, 12)
    if mlp:
        options = {"mlp": mlp, "parallel": parallel, "biases": True}
        network = Network.transformer(layers, 12, 307, **options)
    text = equation(network, notation=notation)
    assert max(map(len, text.splitlines())) <= (85 if mlp else 84)


NEURONS = """\
X_0 = Id ⊗ W_E
X_1 = (Id ⊗ Id + Σ_{h∈L0} A^h ⊗ W_OV^h) X_0 + Id ⊗ b^L0
X_2 = (Id ⊗ Id + Σ_{n∈L0N} G^n ⊗ W_IO^n) X_1 + Id ⊗ b^L0M
X_3 = (Id ⊗ Id + Σ_{h∈L1} A^h ⊗ W_OV^h) X_2 + Id ⊗ b^L1
X_4 = (Id ⊗ Id + Σ_{n∈L1N} G^n ⊗ W_IO^n) X_3 + Id ⊗ b^L1M
T = (Id ⊗ W_U) X_4

T = Id ⊗ W_U W_E                                                    [1]
  + Σ_{h∈L0∪L1} A^h ⊗ W_U W_OV^h W_E                               [24]
  + Σ_{n∈L0N∪L1N} G^n ⊗ W_U W_IO^n W_E                          [6,144]
  + Σ_{c1<c2} P^c2 P^c1 ⊗ W_U W^c2 W^c1 W_E                 [9,584,784]
  + Σ_{c1<c2<c3} P^c3 P^c2 P^c1 ⊗ W_U W^c3 W^c2 W^c1 W_E  [227,377,152]
  + Σ_{c1<…<c4} P^c4 … P^c1 ⊗ W_U W^c4 … W^c1 W_E       [1,358,954,496]
  + Σ_{s} Id ⊗ W_U s                                                [4]
  + Σ_{s<h} A^h ⊗ W_U W_OV^h s                                     [24]
  + Σ_{s<n} G^n ⊗ W_U W_IO^n s                                 [12,288]
  + Σ_{s<c1<c2} P^c2 P^c1 ⊗ W_U W^c2 W^c1 s                 [9,547,776]
  + Σ_{s<c1<c2<c3} P^c3 P^c2 P^c1 ⊗ W_U W^c3 W^c2 W^c1 s  [113,246,208]

[n] terms of each kind, 1,718,728,901 in all
x<y: y is in a later layer than x, or in the MLP after x in its layer
G^n: the gate of neuron n, diagonal in positions; W_IO^n = w_in w_out
c: a head, P^h = A^h, W^h = W_OV^h; a neuron, P^n = G^n, W^n = W_IO^n
s: a constant, b^L0, …, b^L1M
Ll = {LlH0, …, LlH11}, LlN = {LlN0, …, LlN3071} for l = 0…1"""

PARALLEL = """\
T = (Id ⊗ W_U) @ (Id ⊗ Id + Σ_{h∈L1} A[h] ⊗ OV[h] + G[L1M] ⊗ IO[L1M]) @
    (Id ⊗ Id + Σ_{h∈L0} A[h] ⊗ OV[h] + G[L0M] ⊗ IO[L0M]) @ (Id ⊗ W_E)
  = Id ⊗ W_E W_U                                   [1]
  + Σ_{h∈L0∪L1} A[h] ⊗ W_E OV[h] W_U               [6]
  + Σ_{m∈{L0M,L1M}} G[m] ⊗ W_E IO[m] W_U           [2]
  + Σ_{c1<c2} P[c2] P[c1] ⊗ W_E W[c1] W[c2] W_U   [16]

[n] terms of each kind, 25 in all
x<y: y is in a later layer than x
G[m] ⊗ IO[m]: MLP m, the sum of G[n] ⊗ IO[n] over its neurons n
c: a head, P[h] = A[h], W[h] = OV[h]; an MLP, P[m] = G[m], W[m] = IO[m]
L0 = {L0H0, L0H1, L0H2}, L1 = {L1H0, L1H1, L1H2}"""

WHOLE = """\
T = Id ⊗ W_U W_E                                              [1]
  + Σ_{h∈L0∪L1} A^h ⊗ W_U W_OV^h W_E                          [6]
  + Σ_{h2∈L1} Σ_{h1∈L0} A^h2 A^h1 ⊗ W_U W_OV^h2 W_OV^h1 W_E   [9]
  + Id ⊗ W_U M^L0                                             [1]
  + Σ_{h∈L1} A^h ⊗ W_U W_OV^h M^L0                            [3]
  + Id ⊗ W_U M^L1                                             [1]

[n] terms of each kind, 21 in all
M^L0, M^L1: what the MLP of the layer writes
L0 = {L0H0, L0H1, L0H2}, L1 = {L1H0, L1H1, L1H2}"""


def squeezed(text):
    return re.sub(r" {2,}\[", "  [", text)


@pytest.mark.parametrize(
    ("network", "options", "wanted"),
    [
        (Network.transformer(2, 12, 3072, mlp="neurons", biases=True), {}, NEURONS),
        (Network.transformer(2, 3, mlp="frozen", parallel=True), {"notation": "code"}, PARALLEL),
        (Network.transformer(2, 3, mlp="source"), {"form": "expanded"}, WHOLE),
    ],
    ids=["neurons", "parallel", "source"],
)
def test_equations_with_mlps(network, options, wanted):
    assert squeezed(equation(network, **options)) == squeezed(wanted)


def test_three_kinds_of_components_have_their_meaning():
    stages = ((Head(0, 0), Neuron(0, 5)), (Head(1, 0),), (Mlp(1),))
    network = Network(stages, (Source("embed", 0), Source("L1bias", 2)))
    text = equation(network)
    assert "x<y: y reads what x writes\n" in text
    assert (
        "c: a head, P^h = A^h, W^h = W_OV^h; a neuron, P^n = G^n, W^n = W_IO^n;\n"
        "   an MLP, P^m = G^m, W^m = W_IO^m\n"
    ) in text
    tex = equation(network, format="latex")
    assert r"&\text{for an MLP: } P^{m} = G^{m},\ W^{m} = W_{IO}^{m}" in tex
    assert r"\sum_{n \in L_{0N}} G^{n} \otimes W_U W_{IO}^{n} W_E" in tex
    assert r"G^{L1M} \otimes W_U W_{IO}^{L1M} b^{L1}" in tex


def test_endless_numbers_are_rounded():
    assert _number(10**16 - 1) == "9,999,999,999,999,999"
    assert _number(12345 * 10**5000) == "≈ 1.23·10^5004"


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
