"""`expand` and `count` on networks with MLPs."""

from pathlib import Path
from typing import Any

import pytest

SIZES = ["--layers", "2", "--heads", "3"]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        (["--neurons", "5"], (4 * 6) ** 2),
        (["--neurons", "5", "--mlp", "neurons"], (4 * 6) ** 2),
        (["--neurons", "5", "--parallel"], 9**2),
        (["--neurons", "0"], 4**2),
        (["--neurons", "5", "--biases"], (4 * 6) ** 2 + 6 * 24 + 24 + 6 + 1),
        (["--mlp", "frozen"], (4 * 2) ** 2),
        (["--mlp", "frozen", "--parallel"], 5**2),
        (["--mlp", "source"], 4**2 + 4 + 1),
        (["--mlp", "source", "--parallel"], 4**2 + 4 + 1),
        (["--mlp", "source", "--biases", "--positions", "--unembed-bias"], 2 * 16 + 2 * 5 + 1),
    ],
    ids=str,
)
def test_count_with_mlps(call, options, paths):
    assert call("count", *SIZES, *options).out == f"{paths} paths\n"


def test_count_with_mlps_by_order(call):
    lines = call("count", *SIZES, "--neurons", "5", "--by-order").out.splitlines()
    assert [line.split() for line in lines] == [
        ["order", "paths"],
        ["0", "1"],
        ["1", "16"],
        ["2", "94"],
        ["3", "240"],
        ["4", "225"],
        ["all", "576"],
    ]


def test_count_with_mlps_in_layers_of_their_own_size(call):
    assert call("count", "--heads", "4,3", "--neurons", "2").out == f"{5 * 3 * 4 * 3} paths\n"


def test_a_number_of_thousands_of_digits_is_written_whole(call):
    out = call("count", "--layers", "1000", "--heads", "150", "--neurons", "150").out
    number = out.removesuffix(" paths\n")
    groups = [int(group) for group in number.split(",")]
    assert len(groups) > 4300 / 3 and all(len(each) == 3 for each in number.split(",")[1:])
    wanted = 151**2000
    for group in reversed(groups):
        assert wanted % 1000 == group
        wanted //= 1000
    assert wanted == 0


@pytest.mark.parametrize(
    "options", [{"mlp": "neurons", "neurons": 2}, {"mlp": "frozen"}, {"mlp": "source"}], ids=str
)
@pytest.mark.parametrize("parallel", [False, True])
def test_expand_with_mlps_prints_what_can_be_read_back(call, options, parallel):
    from pathexpand.symbolic import Network, expand, parse_expansion

    network = Network.transformer(2, 2, parallel=parallel, biases=True, **options)
    given = [each for name, value in options.items() for each in (f"--{name}", str(value))]
    given += ["--parallel"] * parallel
    for notation in ("paper", "code"):
        sizes = ["--layers", "2", "--heads", "2", "--biases", "--notation", notation]
        text = call("expand", *sizes, *given).out
        assert parse_expansion(text, notation=notation) == expand(network.expression())
        assert len(text.splitlines()) == network.count()


def test_expand_with_mlps_as_latex_and_sympy(call):
    import sympy
    from sympy.physics import quantum

    from pathexpand.symbolic import Network, expand, from_sympy

    given = ["expand", "--layers", "1", "--heads", "1", "--neurons", "2"]
    text = call(*given, "--format", "latex").out
    assert text.splitlines()[2] == r"+ G^{L0N0} \otimes W_U W_{IO}^{L0N0} W_E"
    network = Network.transformer(1, 1, 2, mlp="neurons").expression()
    for equation in ([], ["--equation"]):
        code = call(*given, "--format", "sympy", *equation).out
        form = eval(code, vars(sympy) | vars(quantum)).expand()
        assert from_sympy(form, network.source, network.target) == expand(network)


def test_equation_with_mlps(call):
    text = call("expand", "--layers", "12", "--heads", "12", "--neurons", "3072", "--equation").out
    assert "Σ_{n∈L0N∪…∪L11N} G^n ⊗ W_U W_IO^n W_E" in text
    assert "Σ_{c1<c2} P^c2 P^c1 ⊗ W_U W^c2 W^c1 W_E" in text
    assert max(map(len, text.splitlines())) <= 80
    text = call("expand", *SIZES, "--mlp", "source", "--equation").out
    assert "M^L0, M^L1: what the MLP of the layer writes" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*SIZES, "--mlp", "neurons"], "--mlp neurons needs --neurons"),
        ([*SIZES, "--mlp", "source", "--neurons", "3"], "--mlp source has no use for --neurons"),
        ([*SIZES, "--mlp", "frozen", "--neurons", "3"], "--mlp frozen has no use for --neurons"),
        ([*SIZES, "--parallel"], "--parallel needs MLPs: give --mlp or --neurons"),
        ([*SIZES, "--mlp", "whole"], "'whole' is not one of 'source', 'frozen', 'neurons'"),
        ([*SIZES, "--neurons", "-1"], "--neurons"),
        ([*SIZES, "--neurons", "x"], "--neurons"),
        ([*SIZES, "--neurons", "9" * 5000], "--neurons"),
        ([*SIZES, "--neurons", "500001"], "neurons: wanted at most 1,000,000 in all layers"),
        (["--heads", "1,1,1", "--neurons", "400000"], "in all layers, got 1,200,000"),
        (["--neurons", "3"], "--layers and --heads"),
        (["--mlp", "source"], "--layers and --heads"),
        (["--model", "two-layer", "--neurons", "3"], "--model has its own"),
        (["--model", "two-layer", "--parallel"], "--model has its own"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("command", ["count", "expand"])
def test_networks_that_are_refused(call, command, options, said):
    line = call(command, *options).refused()
    assert said in line
    assert len(line) < 300


def test_a_large_expansion_is_refused_with_its_size(call):
    line = call("expand", "--layers", "12", "--heads", "12", "--neurons", "3072").refused()
    assert "got 16,522,317,015,371,960,456,247,984,700,527,560,340,939,897,314,956,935,601;" in line


@pytest.mark.shared_models
@pytest.mark.parametrize(("mlp", "paths"), [("source", 66_430), ("neurons", 9_150_462_864_199_557)])
def test_a_model_is_counted_with_its_mlps_as_asked(
    call: Any, shared_models: Path, mlp: str, paths: int
) -> None:
    model = str(shared_models / "stories260k")
    assert call("count", "--model", model, "--mlp", mlp).out == f"{paths:,} paths\n"
