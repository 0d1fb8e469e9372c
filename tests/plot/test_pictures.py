"""What the pictures of circuits show, and how pictures are written."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathexpand
from pathexpand.circuits import induction
from pathexpand.circuits.composition import composition
from pathexpand.circuits.copying import copying
from pathexpand.circuits.detection import detect
from pathexpand.errors import FileError, PathExpandError
from pathexpand.laws.design import Design, random_transformer
from pathexpand.plot import (
    attention_pattern,
    behaviour_matrix,
    check_file,
    composition_matrix,
    eigenvalue_plane,
    induction_plane,
    new_axes,
    save,
)


@pytest.fixture(scope="module")
def two() -> Any:
    return pathexpand.load("two-layer").checkpoint


def test_a_composition_matrix_shows_the_scores(two: Any) -> None:
    found = composition(two, "K", samples=0)
    ax = composition_matrix(found)
    shown = ax.images[0].get_array()
    np.testing.assert_allclose(shown, found.matrix[:4, 4:])
    assert ax.images[0].get_clim() == (found.analytic, pytest.approx(np.nanmax(found.matrix)))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("later head", "earlier head")
    assert ax.get_title() == "K-composition"


def test_where_there_is_no_pair_nothing_is_drawn_and_many_heads_are_named_by_layer() -> None:
    design = Design(n_layers=3, n_heads=20, n_key_value_heads=20)
    found = composition(random_transformer(design, seed=1).checkpoint, "V", samples=0)
    ax = composition_matrix(found)
    shown = ax.images[0].get_array()
    assert shown.shape == (40, 40) and shown.mask[20:, :20].all()
    assert shown.mask.sum() == 400
    assert [text.get_text() for text in ax.get_xticklabels()] == ["L1", "L2"]
    # One line between two layers on each axis.
    assert len(ax.lines) == 2


def test_scores_below_chance_alone_are_drawn_too() -> None:
    design = Design(n_layers=2, d_model=2, d_head=1, norms=())
    checkpoint = random_transformer(design, seed=1).checkpoint
    assert composition_matrix(composition(checkpoint, "Q", samples=0)).images


def test_eigenvalues_are_dots_on_one_scale(two: Any) -> None:
    values = copying(two, ["L1H2"], sample=0).eigenvalues[0]
    ax = eigenvalue_plane(values, title="L1H2")
    dots = ax.collections[0].get_offsets()
    np.testing.assert_allclose(np.asarray(dots), np.stack([values.real, values.imag], axis=1))
    assert ax.get_aspect() == 1 and ax.get_xlim() == ax.get_ylim()
    assert ax.get_title() == "L1H2  Re Σλ / Σ|λ| = 0.88"
    assert eigenvalue_plane(np.zeros(3)).get_xlim() == (-1, 1)
    for wrong in (np.zeros((2, 2)), np.array([]), np.array([np.nan])):
        with pytest.raises(PathExpandError, match="one row of finite numbers"):
            eigenvalue_plane(wrong)


def test_the_induction_plane_names_the_strongest_pair(two: Any) -> None:
    found = induction.induction_plane(two)
    ax = induction_plane(found)
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_offsets()), found.points)
    sizes = ax.collections[0].get_sizes()
    assert sizes.argmax() == 0 and sizes[0] > 2 * sizes[1]
    named = [text.get_text() for text in ax.texts]
    assert "L0H3, L1H0" in named and len(named) <= 5
    heights = sorted(text.xyann[1] for text in ax.texts)
    assert all(b - a > 0.09 for a, b in pairwise(heights))


@pytest.mark.parametrize("head", ["L9H0", "L0H9"])
def test_a_pattern_of_no_head_is_refused(head: str) -> None:
    run = pathexpand.load("two-layer").run([1, 2])
    with pytest.raises(PathExpandError, match=f"head {head}: wanted a head of 2 layers of 4"):
        attention_pattern(run, head)


def test_a_behaviour_matrix_shows_the_scores(two: Any) -> None:
    found = detect(two, batch=2)
    ax = behaviour_matrix(found)
    np.testing.assert_allclose(ax.images[0].get_array(), found.scores)
    assert ax.images[0].get_clim() == (0, 1)


def test_drawing_into_axes_that_are_given(two: Any) -> None:
    axes = new_axes(count=4)
    assert len(axes) == 4
    assert composition_matrix(composition(two, "Q", samples=0), ax=axes[2]) is axes[2]
    assert not axes[0].images


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".SVG", b"<?xml")])
def test_pictures_are_written_whole_and_the_same_every_time(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "other")]
    for file in files:
        save(eigenvalue_plane(np.array([1.0, 1j])), file)
    one, other = (file.read_bytes() for file in files)
    assert one.startswith(start) and one == other
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plane.png"
    file.write_text("old")

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(FileError, match="No space left"):
        save(eigenvalue_plane(np.array([1.0])), file)
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plane.gif", "plane", "png", "plane.png.txt"):
        with pytest.raises(FileError, match=r"ends in \.png or \.svg"):
            check_file(tmp_path / name)
    with pytest.raises(FileError, match="a directory that exists"):
        check_file(tmp_path / "none" / "plane.png")
    monkeypatch.setattr("pathexpand.plot.figure.find_spec", lambda name: None)
    for call in (lambda: check_file(tmp_path / "plane.png"), new_axes):
        with pytest.raises(PathExpandError, match=r"pip install 'pathexpand\[plot\]'"):
            call()


def test_no_global_state_is_changed() -> None:
    """A notebook's own backend, settings and open figures stay as they are."""
    code = """
import numpy as np, matplotlib
matplotlib.rcParams["svg.hashsalt"] = "own"
def settings():  # to ask for the backend would choose one, and load pyplot
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
before = settings()
from pathexpand.plot import eigenvalue_plane, save
import tempfile, pathlib, sys
with tempfile.TemporaryDirectory() as folder:
    save(eigenvalue_plane(np.array([1.0])), pathlib.Path(folder) / "plane.svg")
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_matplotlib_is_loaded_late() -> None:
    code = "import sys, pathexpand.plot; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
