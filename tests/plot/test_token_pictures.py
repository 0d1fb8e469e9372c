"""Heat maps over tokens, waterfalls, and names that matplotlib could trip over."""

import gc
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits.circuit import Circuit, read_token
from pathexpand.cli import main
from pathexpand.errors import PathExpandError
from pathexpand.lowrank import Factored
from pathexpand.plot import attention_pattern, eigenvalue_plane, new_axes, save
from pathexpand.plot.heatmap import token_heatmap
from pathexpand.plot.names import readable
from pathexpand.plot.waterfall import order_waterfall
from pathexpand.table.path_table import SourceToken

# Warnings are errors in these tests, so a letter without a glyph fails them.
ODD = (
    "'$x$'",
    "'\\n'",
    "' \U0001f600'",
    "'שלום'",
    r"b'\xdd'",
    "'漢字'",
    "'\\u202e'",
    "'a\\\\$'",
    "'$'",
)


@pytest.fixture(scope="module")
def model() -> Any:
    return pathexpand.load("two-layer")


@pytest.fixture(scope="module")
def run(model: Any) -> Any:
    return model.run("Humpty Dumpty sat on a wall. Humpty D")


def labels(axis: Any) -> list[str]:
    return [each.get_text() for each in axis.get_ticklabels()]


def test_a_heat_map_shows_the_entries(model: Any) -> None:
    circuit = model.circuits.ov("L1H0")
    ax = token_heatmap(circuit, [" to", 300, " be"], [5, " to"])
    ids = [read_token(circuit.checkpoint, text, 1024) for text in (" to", " be")]
    shown = ax.images[0].get_array()
    wanted = circuit.matrix.left @ circuit.matrix.right
    np.testing.assert_allclose(shown, wanted[[ids[0], 300, ids[1]]][:, [5, ids[0]]])
    low, high = ax.images[0].get_clim()
    assert low == -high  # white is 0
    assert labels(ax.yaxis)[::2] == ["' to'", "' be'"] and labels(ax.xaxis)[1] == "' to'"
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("source", "output")
    assert len(ax.texts) == 6  # small enough for numbers


def test_a_heat_map_is_of_its_rows_by_themselves_and_draws_where_it_is_told(model: Any) -> None:
    axes = new_axes(count=2)
    ax = token_heatmap(model.circuits.qk("L1H0", key="L0H3"), range(20), ax=axes[1])
    assert ax is axes[1] and ax.images[0].get_array().shape == (20, 20) and not ax.texts
    assert ax.get_title() == "QK circuit of L1H0, key through L0H3"


@pytest.mark.parametrize("rows", ["to", [], 5, None, ["no such token at all"], [9999]])
def test_what_is_no_list_of_tokens_is_refused(model: Any, rows: Any) -> None:
    with pytest.raises(PathExpandError):
        token_heatmap(model.circuits.ov("L1H0"), rows)


def test_nothing_as_large_as_the_vocabulary_squared_is_made(model: Any) -> None:
    circuit = model.circuits.ov("L1H0")
    token_heatmap(circuit, [1, 2])  # fonts and colours are loaded
    gc.collect()
    tracemalloc.start()
    token_heatmap(circuit, [1, 2])
    assert tracemalloc.get_traced_memory()[1] < 1024 * 1024 * 8 / 2
    tracemalloc.stop()


def test_a_circuit_of_zeros_has_a_picture(model: Any, tmp_path: Path) -> None:
    circuit = model.circuits.ov("L1H0")
    size = circuit.matrix.shape
    empty = Factored(np.zeros((size[0], 1)), np.zeros((1, size[1])))
    save(
        token_heatmap(Circuit(circuit.checkpoint, "OV", "L1H0", empty), [1, 2]), tmp_path / "a.png"
    )


def ends(ax: Any) -> list[tuple[float, float]]:
    return [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in ax.patches]


def test_a_waterfall_ends_at_the_dense_value(run: Any) -> None:
    table = run.totals_table(by="order")
    ax = order_waterfall(table)
    assert labels(ax.xaxis) == ["order 0", "order 1", "order 2", "dense"]
    found, at = ends(ax), 0.0
    for (start, end), row in zip(found, table.rows, strict=False):
        assert start == pytest.approx(at) and end == pytest.approx(at + row.value)
        at = end
    assert found[-1] == (0.0, pytest.approx(table.dense)) and at == pytest.approx(table.dense)
    hatched = [bar.get_hatch() is not None for bar in ax.patches]
    assert hatched == [row.value < 0 for row in table.rows] + [False]
    assert [text.get_text()[0] for text in ax.texts[:3]] == ["+", "+", "-"]
    low, high = ax.get_ylim()
    assert high > max(max(pair) for pair in found) and low <= 0  # room for the numbers


def test_what_a_query_leaves_out_is_a_bar_of_its_own(run: Any) -> None:
    table = run.totals_table(by="order", query="* > L1H0")
    ax = order_waterfall(table)
    assert labels(ax.xaxis)[-2:] == ["outside", "dense"]
    assert ends(ax)[-2] == (pytest.approx(table.total), pytest.approx(table.dense))
    assert ax.get_title().splitlines() == [table.target, "* > L1H0"]


def test_a_falling_waterfall_has_room_below(run: Any) -> None:
    ax = order_waterfall(run.totals_table(target="to-um"))
    assert ax.get_ylim()[0] < min(min(pair) for pair in ends(ax)) < 0


def test_other_totals_have_no_waterfall(run: Any) -> None:
    for table in (run.totals_table(by="head"), run.paths(top=1)):
        with pytest.raises(PathExpandError, match="by order"):
            order_waterfall(table)


@pytest.mark.parametrize("size", [1, len(ODD), 64, 200])
def test_odd_tokens_are_named(size: int, tmp_path: Path) -> None:
    tokens = tuple(SourceToken(n, n, ODD[n % len(ODD)]) for n in range(size))
    pattern = np.tril(np.ones((size, size)))
    run: Any = SimpleNamespace(patterns=(pattern[None],), source_tokens=tokens)
    ax = attention_pattern(run, "L0H0")
    save(ax, tmp_path / "pattern.png")
    names = labels(ax.yaxis)
    assert names[0] == r"'\$x\$' 0" and len(names) <= 64
    assert names[-1].endswith(f" {(size - 1) // -(-size // 64) * -(-size // 64)}")


def test_titles_may_hold_anything(tmp_path: Path) -> None:
    for text in ODD:
        save(eigenvalue_plane(np.array([1.0]), title=text + "\n"), tmp_path / "plane.png")
    assert readable("$a$ 漢") == r"\$a\$ \u6f22" and readable("a\nb") == r"a\nb"


def ran(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return int(done.value.code or 0)


def test_commands_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "total.png", tmp_path / "circuit.svg"
    assert ran("total", "--plot", str(one)) == 0 and one.stat().st_size > 5_000
    asked = ("circuits", "--ov", "L1H0", "--row", " to", "--row", " be")
    assert ran(*asked, "--plot", str(other)) == 0 and b"<svg" in other.read_bytes()
    assert "' be'" in capsys.readouterr().out
    assert ran("total", "--by", "head", "--plot", str(one)) == 2
    assert ran("circuits", "--ov", "L1H0", "--plot", str(one)) == 2
    assert ran("circuits", "--bigrams", "--plot", str(one)) == 2
    assert ran("total", "--plot", str(tmp_path / "total.gif")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_a_notebook_shows_each_picture_once() -> None:
    client, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = (
        "import numpy as np\nfrom pathexpand.plot import eigenvalue_plane, new_axes\n"
        "eigenvalue_plane(np.array([1.0]))",
        "eigenvalue_plane(np.array([1.0]), ax=new_axes(count=2)[1]);",
        "1 + 1",
    )
    notebook = formats.v4.new_notebook(cells=[formats.v4.new_code_cell(each) for each in cells])
    client.NotebookClient(notebook, kernel_name="python3", timeout=60).execute()
    pictures = [
        sum("image/png" in output.get("data", {}) for output in cell.outputs)
        for cell in notebook.cells
    ]
    assert pictures == [1, 1, 0]
