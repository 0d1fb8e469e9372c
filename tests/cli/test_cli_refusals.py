"""Bad input: exit status 2, one line on standard error, nothing on standard output or on disk."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nope"], "nope"),
        (["--model", "no\nsuch\x1bmodel"], r"no\nsuch\x1bmodel"),
        (["--model", "x" * 5000], "name too long"),
        (["--prompt", ""], "at least one token"),
        (["--tokens", ""], "at least one token"),
        (["--tokens", "1,two"], "'two'"),
        (["--tokens", "1 2.5"], "'2.5'"),
        (["--tokens", "1,99999"], "token id 99999 at position 1"),
        (["--tokens", "-1"], "token id -1"),
        (["--tokens", "9" * 30], "ids such as 1,2,3"),
        (["--prompt", "word " * 200], "at most"),
        (["--prompt", "a", "--target", "no such token"], "one token"),
        (["--prompt", "a", "--target", ""], "target"),
        (["--prompt", "a", "--target", "99999"], "target id 99999"),
        (["--prompt", "a", "--target", "5-5"], "two different tokens"),
        (["--prompt", "a", "--position", "7"], "position 7"),
        (["--prompt", "a", "--position", "x"], "valid integer"),
        (["--prompt", "\udcff"], "UTF-8"),
        (["--prompt", "a", "--target", "\udcff"], "UTF-8"),
        (["--prompt", "a", "--tokens", "1"], "one of --prompt"),
        (["--prompt-file", "no such file"], "cannot read"),
        (["--prompt-file", "."], "cannot read"),
        (["--top", "-1"], "top"),
        (["--max-order", "-1"], "max_order"),
        (["--nodes", "-1"], "nodes"),
        (["--nodes", "many"], "valid integer"),
        (["--seconds", "-1"], "seconds"),
        (["--seconds", "nan"], "seconds"),
        (["--memory", "-0.5"], "memory"),
        (["--memory", "nan"], "memory"),
        (["--query", ""], "query"),
        (["--query", "embed > L9H0"], "column 9 of query 'embed > L9H0'"),
        (["--query", "embed > "], "column 8 of query"),
        (["--query", "embed > L0H0 L1H0"], "column 14 of query"),
        (["--query", "\udcff"], "UTF-8"),
        (["--weights-only", "--query", "L0H0 > embed"], "column 8 of query"),
        (["--weights-only", "--nodes", "-1"], "nodes"),
        (["--weights-only", "--top", "-1"], "top"),
        (["--format", "xml"], "xml"),
        (["--frobnicate"], "--frobnicate"),
        (["--out", "no such directory/t.csv"], "cannot write"),
        (["--out", "."], "directory"),
        (["--weights-only", "--prompt", "a"], "--weights-only"),
        (["--weights-only", "--raw"], "--weights-only"),
    ],
    ids=str,
)
def test_table_refuses(call, arguments, said):
    assert said in call("table", *arguments).refused()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["count"], "--layers and --heads"),
        (["count", "--layers", "2"], "--layers and --heads"),
        (["count", "--heads", "4"], "--layers and --heads"),
        (["count", "--layers", "2", "--heads", "x"], "heads"),
        (["count", "--layers", "2", "--heads", "-3"], "heads"),
        (["count", "--layers", "3", "--heads", "4,3"], "layers"),
        (["count", "--layers", "-1", "--heads", "3"], "--layers"),
        (["count", "--layers", "2", "--heads", "100000"], "at most 1000"),
        (["count", "--model", "two-layer", "--layers", "2"], "--model"),
        (["expand"], "--layers and --heads"),
        (["expand", "--layers", "12", "--heads", "12"], "23,298,085,122,481; give --max-order"),
        (["expand", "--layers", "2", "--heads", "12", "--limit", "168"], "169"),
        (["expand", "--layers", "2", "--heads", "2", "--equation", "--max-order", "1"], "orders"),
        (
            ["expand", "--layers", "1", "--heads", "1", "--format", "sympy", "--notation", "code"],
            "paper's notation",
        ),
        (["verify", "--model", "nope"], "nope"),
        (["total", "--by", "layer"], "layer"),
        (["total", "--by", "head", "--query", "embed > *"], "no query"),
        (["total", "--by", "pair", "--query", "embed > *"], "no query"),
        (["total", "--query", "embed > L0H"], "column 9 of query"),
        (["total", "--query", "{"], "column 2 of query"),
        (["total", "--top", "3"], "--top"),
        (["total", "--target", "no such token"], "one token"),
        (["total", "--prompt", "a", "--tokens", "1"], "one of --prompt"),
        (["query", "embed"], "unexpected extra argument"),
        (["verify", "--prompt", "a", "--position", "9"], "position 9"),
        (["frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
    ],
    ids=str,
)
def test_other_commands_refuse(call, arguments, said):
    assert said in call(*arguments).refused()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"embed.W_E": None}, ["embed.W_E (11, 7) is missing"]),
        (
            {"blocks.1.attn.W_O": np.ones((3, 7, 2))},
            ["blocks.1.attn.W_O has shape (3, 7, 2)", "wanted (3, 2, 7)"],
        ),
        ({"unembed.W_U": np.full((7, 11), np.nan)}, ["unembed.W_U", "NaN"]),
        ({"blocks.0.attn.W_Q": np.full((3, 7, 2), np.inf)}, ["blocks.0.attn.W_Q", "infinite"]),
        ({"blocks.0.mlp.W_in": np.ones((7, 7))}, ["blocks.0.mlp.W_in"]),
        ({"embed.W_E": np.ones((11, 7), dtype=np.int64)}, ["embed.W_E"]),
        (
            {"embed.W_E": np.full((11, 7), 1e300), "unembed.W_U": np.full((7, 11), 1e300)},
            ["finite"],
        ),
    ],
    ids=str,
)
def test_broken_weights_are_refused(call, save, tmp_path, changed, said):
    out = tmp_path / "table.json"
    line = call(
        "table", "--model", save(**changed), "--tokens", "1,2,3", "--raw", "--out", out
    ).refused()
    assert all(each in line for each in said), line
    assert not out.exists()


def test_a_truncated_file_is_refused(call, save):
    file = save() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    assert "whole .safetensors file" in call("table", "--model", file, "--tokens", "1").refused()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"n_layers": "two"}'])
def test_a_broken_configuration_is_refused(call, save, text):
    folder = save()
    (folder / "config.json").write_text(text)
    call("table", "--model", folder, "--tokens", "1").refused()


@pytest.mark.parametrize("change", [{"normalization_type": "LN"}, {"d_head": 0}, {"n_ctx": 0.5}])
def test_a_configuration_that_no_model_has_is_refused(call, save, change):
    call("table", "--model", save(config=change), "--tokens", "1").refused()


def test_a_directory_without_weights_is_refused(call, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    call("table", "--model", tmp_path, "--tokens", "1").refused()


def test_a_pickle_is_refused(call, save):
    file = save() / "model.pt"
    file.write_bytes(b"\x80\x04N.")
    assert "pickles are never loaded" in call("table", "--model", file).refused()


def test_a_model_without_tokenizer_wants_ids(call, save):
    folder = save()
    assert "token ids" in call("table", "--model", folder, "--prompt", "a").refused()
    assert "needs --prompt" in call("table", "--model", folder).refused()
    assert (
        "no tokenizer"
        in call("table", "--model", folder, "--tokens", "1", "--target", "word").refused()
    )


def test_too_many_tokens_are_refused(call, save):
    line = call("table", "--model", save(), "--tokens", "1 2 3 4 5 6").refused()
    assert "at most 5 tokens" in line


def test_a_prompt_file_that_is_no_text_is_refused(call, tmp_path):
    (tmp_path / "prompt").write_bytes(b"caf\xe9")
    assert "UTF-8" in call("table", "--prompt-file", tmp_path / "prompt").refused()


def test_a_failed_write_leaves_the_old_file(call, save, tmp_path, monkeypatch):
    out = tmp_path / "table.csv"
    out.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    line = call("table", "--model", save(), "--tokens", "1", "--out", out).refused()
    assert "No space left on device" in line
    assert out.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "table.csv"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_an_unwritable_directory_is_refused(call, save, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    call("table", "--model", save(), "--tokens", "1", "--out", closed / "t.csv").refused()
    assert not list(closed.iterdir())


def test_deep_json_is_refused(call, save):
    folder = save()
    (folder / "config.json").write_text("[" * 200_000)
    call("table", "--model", folder, "--tokens", "1").refused()


def test_a_model_name_with_lone_surrogates_can_be_written(call, save, tmp_path):
    folder = save(config={"model_name": "\ud800"})
    out = tmp_path / "t.json"
    assert call("table", "--model", folder, "--tokens", "1", "--out", out).code == 0
    assert json.loads(out.read_text(encoding="utf-8"))["model"] == "\ud800"
