"""Answers to exercises: right ones are told right, wrong ones why they are not."""

from functools import cache
from typing import Any

import nbformat
import numpy as np
import pytest

import pathexpand
from pathexpand.errors import PathExpandError
from pathexpand.tutorial import check, notebooks
from pathexpand.tutorial.exercises import EXERCISES
from pathexpand.tutorial.verdict import NEAR


@cache
def asked_in(file: str) -> dict[str, Any]:
    """Run a notebook in this process; give what each of its exercises is about."""
    import pathexpand.tutorial as tutorial

    asked: dict[str, Any] = {}
    (notebook,) = [each for each in notebooks() if each.file == file]
    names: dict[str, Any] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tutorial, "check", lambda name, _, given=None: asked.update({name: given}))
        for cell in nbformat.reads(notebook.text, as_version=4).cells:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
                exec("\n".join(lines), names)
    return asked


def about(exercise: str) -> Any:
    (file,) = [each.file for each in notebooks() if each.file[0] == exercise[0]]
    return asked_in(file)[exercise]


@cache
def key(exercise: str) -> Any:
    return EXERCISES[exercise].key(about(exercise))


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_right_answer_is_right_and_slips_are_told(exercise: str) -> None:
    given, found = about(exercise), key(exercise)
    assert repr(check(exercise, found.right, given)) == f"Exercise {exercise}: right."
    assert not check(exercise, None, given).right
    for slip, why in found.slips:
        verdict = check(exercise, slip, given)
        assert (verdict.right, verdict.why) == (False, why)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_other_answers_are_refused(exercise: str) -> None:
    given, right = about(exercise), key(exercise).right
    others: list[object] = ["no", "", [], object(), float("nan"), True, b"0"]
    if isinstance(right, str):
        others += [0, right[::-1], f"{right} > L1H0"]
    else:
        others += [right + 1, -right - 1, str(right), [right, right]]
        others += [right * (1 + 2 * NEAR), -right] if right else [1e-6]
    for other in others:
        verdict = check(exercise, other, given)
        assert not verdict.right, other
        assert verdict.why.endswith("."), other
        assert repr(verdict).startswith(f"Exercise {exercise}: not yet. ")


def test_numbers_may_be_read_off_a_table() -> None:
    given, right = about("2.1"), key("2.1").right
    for near in (round(right, 2), np.float32(right), np.array([right]), right * (1 - NEAR / 2)):
        assert check("2.1", near, given).right


def test_counts_must_be_exact() -> None:
    assert check("1.3", 13.0**12).right  # the same number
    assert check("1.3", np.int64(13**12)).right
    assert check("1.3", 13**12 + 1).why.endswith("is too large.")
    assert check("1.3", 5).why == "5 is too small."


def test_signs_are_told() -> None:
    given = about("4.1")
    assert check("4.1", -key("4.1").right, given).why == "It has the wrong sign."


@pytest.mark.parametrize("exercise", ["9.9", "", None, 1.1, ["1.1"], "x" * 5000])
def test_there_is_no_such_exercise(exercise: Any) -> None:
    with pytest.raises(PathExpandError, match=r"wanted one of 1\.1, 1\.2") as error:
        check(exercise, 1)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("exercise", [name for name, each in EXERCISES.items() if each.kind])
def test_what_it_is_about_must_be_of_the_right_kind(exercise: str) -> None:
    if EXERCISES[exercise].kind == "nothing":
        return
    for other in (None, 3, "two-layer"):
        with pytest.raises(PathExpandError, match=f"the {EXERCISES[exercise].kind} that it is"):
            check(exercise, 1, other)


@pytest.mark.parametrize("exercise", ["3.3", "3.4", "4.1", "7.1", "2.4", "8.2"])
def test_another_model_than_the_notebooks_is_told_in_our_words(exercise: str) -> None:
    one = pathexpand.load("one-layer")
    kind = EXERCISES[exercise].kind
    graph = pathexpand.load("two-layer").run("to be").graph
    other = {"Model": lambda: pathexpand.load("zero-layer"), "Run": lambda: one.run("to be")}
    with pytest.raises(PathExpandError):
        check(exercise, 1, other.get(kind, graph)())


def test_an_answer_may_be_about_another_prompt() -> None:
    run = pathexpand.load("one-layer").run("try:\n    pass\n   ")
    assert check("2.1", run.value("embed > L0H2", " except"), run).right
    assert not check("2.1", key("2.1").right, run).right
