"""Every example of the tutorial prints what stands under it."""

import doctest
import re
from typing import Any

from pathexpand.tutorial import page

PAGE = page()
NAME = "pathexpand/tutorial/circuits.md"


def cases(text: str) -> list[tuple[str, doctest.DocTest]]:
    """Read the examples of each block of code, with its language."""
    found = []
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        line = text[: block.start(2)].count("\n")
        case = doctest.DocTestParser().get_doctest(block[2], {}, NAME, NAME, line)
        found.append((block[1], case))
    return found


CASES = cases(PAGE)


def differences(text: str) -> list[str]:
    """Run a page from its top, names staying from block to block; say what is not as shown."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    names: dict[str, Any] = {}
    found: list[str] = []
    for _, case in cases(text):
        case.globs = names
        runner.run(case, out=found.append, clear_globs=False)
    return found


def test_every_example_prints_what_the_page_shows() -> None:
    assert "".join(differences(PAGE)) == ""


def test_every_block_is_python_with_examples_and_their_output() -> None:
    assert {language for language, _ in CASES} == {"python"}
    marks = re.findall(r"^ *>>> ", PAGE, flags=re.MULTILINE)
    assert sum(len(case.examples) for _, case in CASES) == len(marks)
    (_, first), *others = CASES
    assert first.examples
    for _, case in others:
        assert any(example.want for example in case.examples), case.lineno


def test_every_question_is_answered_by_code() -> None:
    _, *questions = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    assert len(questions) == 12
    assert all("\n>>> " in question for question in questions)


def test_no_output_is_waved_through() -> None:
    # Not one of the outputs may match anything: no ellipsis, and no doctest option on a line.
    assert "# doctest:" not in PAGE
    assert not [e for _, case in CASES for e in case.examples if "..." in e.want]


def test_wrong_outputs_are_seen() -> None:
    wrong = {"14.36": "14.37", "(0.93, 423)": "(0.93, 424)", "'remit'": "'submit'"}
    text = PAGE
    for shown, other in wrong.items():
        assert text.count(shown) == 1
        text = text.replace(shown, other)
    assert len(differences(text)) == len(wrong)
