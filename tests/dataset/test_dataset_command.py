"""`pathexpand dataset`: what it reads, what it prints, what it refuses in one line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import NamedTuple

import pytest

from pathexpand.api import load
from pathexpand.cli import main
from pathexpand.table.dataset_table import DatasetTable

TEXTS = ["to be or not to be", " that is the question"]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(["dataset", *map(str, arguments)])
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def save(tmp_path: FilePath) -> Callable[..., FilePath]:
    def write(content: str | bytes, name: str = "prompts.txt") -> FilePath:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write


def table_of(outcome: Outcome) -> DatasetTable:
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return DatasetTable.from_json(outcome.out)


@pytest.mark.parametrize("content", ["\n\n{}\n\r\n{}", "{}\r\n{}\r\n", "\ufeff{}\n{}\n"])
def test_each_line_is_a_prompt_as_it_stands(call, save, content):
    found = table_of(call("--prompts", save(content.format(*TEXTS)), "--format", "json"))
    assert found == load("two-layer").dataset_paths(TEXTS)


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.NDJSON", "prompts.txt"])
def test_json_lines_have_text_tokens_and_targets(call, save, name):
    model = load("two-layer")
    ids = model.run(TEXTS[1]).tokens.tolist()
    lines = [{"text": TEXTS[0], "id": 7}, {"tokens": ids, "target": [5, "id:6"]}]
    file = save("\n".join(map(json.dumps, lines)), name)
    found = table_of(call("--prompts", file, "--format", "json", "--by", "mean"))
    assert found == model.dataset_paths([TEXTS[0], ids], by="mean", targets=[None, (5, 6)])


def test_options_are_passed_on(call, save):
    arguments = "--top 3 --query", "embed > * > L1H*", "--max-order 1 --target 5 --raw --by mean"
    words = [*arguments[0].split(), arguments[1], *arguments[2].split()]
    file = save("\n".join(TEXTS))
    found = table_of(call("--prompts", file, *words, "--format", "json"))
    assert found == load("two-layer").dataset_paths(
        TEXTS, by="mean", top=3, query="embed > * > L1H*", max_order=1, target=5, centred=False
    )


@pytest.mark.parametrize(
    "limits", [("--rounds", 1), ("--nodes", 1), ("--seconds", 0), ("--rounds", 0), ("--nodes", 0)]
)
def test_a_limit_stops_early(call, save, limits):
    file = save("\n".join(TEXTS))
    found = table_of(call("--prompts", file, *limits, "--format", "json"))
    assert not found.certified
    assert found.closes


def test_standard_input_is_read(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    found = table_of(call("--prompts", "-", "--format", "json"))
    assert found.prompts == 2


def test_a_table_is_printed_or_written(call, save, tmp_path):
    file = save("\n".join(TEXTS))
    assert "Certified: " in call("--prompts", file).out
    out = tmp_path / "table.csv"
    assert call("--prompts", file, "--out", out) == (0, "", "")
    assert out.read_text().startswith("rank,path,order,kind,rms,mean,standard_error,share,certain")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "", "wanted at least one prompt, got an empty file"),
        ("a.txt", "\n \r\n", "wanted at least one prompt, got an empty file"),
        ("a.txt", b"fine\n\xff\xfe", "a.txt line 2: wanted text in UTF-8"),
        ("a.txt", "fine\n\n" + "to be " * 900, "a.txt line 3: prompt: wanted at most 128 tokens"),
        ("a.jsonl", "fine", "a.jsonl line 1: wanted a JSON object"),
        ("a.jsonl", '{"text": "a"}\n{"text', "a.jsonl line 2: wanted a JSON object"),
        ("a.jsonl", '{"text": "a"}\n[1]', "a.jsonl line 2: wanted a JSON object with one of"),
        ("a.txt", '{"text": "a"}\nfine', "a.txt line 2: wanted a JSON object"),
        ("a.txt", '{"text": "a"}\n{"text": 5}', 'a.txt line 2: wanted a string as "text"'),
        ("a.txt", '{"text": "a"}\n{"text": ""}', "a.txt line 2: prompt: wanted at least one"),
        ("a.txt", '{"tokens": [1]}\n{"tokens": []}', "a.txt line 2: prompt: wanted at least"),
        ("a.txt", '{"tokens": [1]}\n{"tokens": [true]}', "a.txt line 2: wanted a list of ids"),
        ("a.txt", '{"tokens": [1]}\n{"tokens": [1e3]}', "a.txt line 2: wanted a list of ids"),
        ("a.txt", '{"tokens": [1]}\n{"tokens": [9999]}', "a.txt line 2: token id 9999"),
        ("a.txt", '{"tokens": [1]}\n{"tokens": [1' + "0" * 30 + "]}", "a.txt line 2: prompt"),
        ("a.txt", '{"tokens": [1], "text": "a"}', "a.txt line 1: wanted a JSON object with one"),
        ("a.txt", '{"text": "\\ud800"}', "a.txt line 1: wanted a JSON object"),
        ("a.txt", '{"text": "a", "target": 9999}', "a.txt line 1: target id 9999"),
        ("a.txt", '{"text": "a", "target": {}}', "a.txt line 1: target: wanted a token"),
        ("a.txt", '{"text": "a", "target": [1]}', "a.txt line 1: target: wanted two tokens"),
        ("a.txt", "[" * 100_000, "a.txt line 1: prompt: wanted at most 128"),
        ("a.jsonl", "[" * 100_000, "a.jsonl line 1: wanted a JSON object"),
    ],
    ids=range(22),
)
def test_a_bad_line_is_named(call, save, name, content, said):
    refused(call("--prompts", save(content, name)), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompts", "no such file"), "no such file: cannot read: No such file or directory"),
        (("--prompts", "."), ".: cannot read: Is a directory"),
        ((), "Missing option '--prompts'"),
    ],
)
def test_a_missing_file_is_named(call, arguments, said):
    refused(call(*arguments), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--top", -1), "top: wanted a whole number of at least 0"),
        (("--rounds", -1), "rounds: wanted a whole number of at least 0"),
        (("--seconds", "nan"), "budget seconds: wanted at least 0"),
        (("--cache", -1), "--cache"),
        (("--by", "median"), "'median' is not one of"),
        (("--query", "embed >"), "query"),
        (("--target", "no such token"), "target"),
        (("--model", "no-such-model"), "no-such-model"),
    ],
)
def test_a_bad_option_is_named(call, save, arguments, said):
    refused(call("--prompts", save("to be"), *arguments), said)


def test_two_kinds_of_target_are_refused(call, save):
    file = save('{"text": "a", "target": 5}')
    refused(call("--prompts", file, "--target", 6), "--target is for prompts without a target")


def refused(outcome: Outcome, said: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("pathexpand: error: ")
    assert said in outcome.err
