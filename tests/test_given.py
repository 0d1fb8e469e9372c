"""What people give from Python and the command line: one error line, whatever it is."""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pathexpand import laws
from pathexpand.api import Model, from_state_dict, load
from pathexpand.circuits.circuit import qk
from pathexpand.circuits.copying import copying
from pathexpand.circuits.detection import detect, detect_on
from pathexpand.circuits.importance import importance
from pathexpand.cli import main
from pathexpand.engine.search import Budget
from pathexpand.errors import FileError, ModelError, NotationError, PathExpandError, PromptError
from pathexpand.model.config import Config
from pathexpand.symbolic import Head, Path, source_key
from pathexpand.target import LogitTarget

SIZES = {
    "n_layers": 2,
    "n_heads": 3,
    "d_model": 7,
    "d_head": 2,
    "d_vocab": 13,
    "d_vocab_out": 11,
    "n_ctx": 5,
    "attn_only": True,
}
LONG = "9" * 5000


class Ours:
    """Say that an error is of a kind, of one short line, and has a text."""

    def __init__(self, kind: type[PathExpandError], said: str = "") -> None:
        self.kind, self.said = kind, said

    def of(self, call: Callable[[], object]) -> None:
        with pytest.raises(self.kind) as caught:
            call()
        line = str(caught.value)
        assert self.said in line
        assert "\n" not in line
        assert len(line) < 300


@pytest.fixture(scope="module")
def model() -> Model:
    return load("two-layer")


@pytest.fixture
def random() -> Model:
    return laws.random_model(seed=1)


@pytest.fixture
def tensors(random: Model) -> dict[str, Any]:
    return {name: np.array(array) for name, array in random.weights.named()}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("pathexpand: error: ")
        assert len(err) < 400, err
        return err

    return run


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["²", "①", "٣", "१", "+-5", "--5", "3²"])
def test_only_ascii_digits_are_ids(text: str, model: Model, random: Model) -> None:
    Ours(PromptError, "no tokenizer.json").of(lambda: random.run([1]).target(text))
    Ours(PromptError, "whole number after id:").of(lambda: random.run([1]).target(f"id:{text}"))
    try:
        token = model.run("a").target(text)
    except PromptError as error:
        assert "\n" not in str(error)
    else:
        assert token != LogitTarget(3)


def test_other_digits_in_a_file_of_prompts(refused: Any, tmp_path: FilePath) -> None:
    for text in ("²", "①"):
        refused("table", "--prompt", "a", "--target", text)
        (tmp_path / "p.jsonl").write_text(json.dumps({"text": "a", "target": text}))
        refused("dataset", "--prompts", tmp_path / "p.jsonl")


@pytest.mark.parametrize(
    "given", [LONG, f"id:{LONG}", f"-{LONG}", 10**5000, -(10**30), [LONG]], ids=range(6)
)
def test_endless_target_ids(given: Any, random: Model) -> None:
    Ours(PromptError, "target").of(lambda: random.run([1]).target(given))


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones(7, dtype=complex),
        np.full(7, 1j),
        np.full(7, "1"),
        np.full(7, None),
        np.full(7, True),
        np.array([1j] * 7, dtype=object),
        np.array([1.0] * 6 + [float("nan")], dtype=object),
        np.array([1] * 6 + ["1"], dtype=object),
        np.full(7, np.datetime64(1, "s")),
    ],
)
def test_directions_hold_real_numbers(wrong: Any, random: Model) -> None:
    Ours(PromptError, "target direction: wanted").of(lambda: random.run([1]).target(wrong))


def test_exact_directions_are_kept(random: Model) -> None:
    found = random.run([1]).target(np.array([Fraction(1, 3)] * 7, dtype=object))
    assert found.readout(random.weights, 0).direction[0] == Fraction(1, 3)


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([[1, 2], [3]], "whole numbers as ids, got [1, 2]"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "one row of token ids"),
        (["a", "b"], "whole numbers as ids, got 'a'"),
        ([True, 1], "whole numbers as ids, got True"),
        ([np.True_], "whole numbers as ids, got"),
        (np.array([True]), "whole numbers, got bool values"),
        ([1, None], "whole numbers as ids, got None"),
        ([1, 2.5], "whole numbers as ids, got 2.5"),
        (None, "one row of token ids, got None"),
        (5, "one row of token ids, got 5"),
        (b"ab", "one row of token ids, got b'ab'"),
        ([np.uint64(2**63 + 5)], f"token id {2**63 + 5} at position 0"),
        ([1, np.uint64(2**63 + 5)], f"token id {2**63 + 5} at position 1"),
        (np.array([1, 2**63 + 5], dtype=np.uint64), f"token id {2**63 + 5} at position 1"),
        ([-(2**63) - 1], f"token id {-(2**63) - 1} at position 0"),
        ([10**5000], "a number of more than 60 digits"),
    ],
    ids=range(16),
)
def test_bad_prompts(prompt: Any, said: str, random: Model) -> None:
    Ours(PromptError, said).of(lambda: random.run(prompt))


def test_good_ids_of_every_type(random: Model) -> None:
    for prompt in ([np.uint8(3), 1], (3, 1), np.array([[3, 1]], dtype=np.uint64), [[3, 1]]):
        tokens = random.run(prompt).tokens
        assert tokens.dtype == np.int64
        assert tokens.tolist() == [3, 1]


def test_half_a_surrogate_pair_is_no_text(model: Model) -> None:
    said = r"'a\ud800b': wanted text in UTF-8, got half a surrogate pair at character 1"
    Ours(PromptError, f"prompt {said}").of(lambda: model.run("a\ud800b"))
    run = model.run("a")
    for target in ("a\ud800b", "text:a\ud800b", ("a\ud800b", 1)):
        Ours(PromptError, f"target {said}").of(lambda target=target: run.target(target))


# --- configurations -------------------------------------------------------------------------------


WRONG: tuple[Any, ...] = ([], {}, "x", 1.5, -2, True, [1], {"a": 1}, None, 10**5000, np.ones(2))
KEYS = {
    "n_layers": (),
    "n_heads": (),
    "d_model": (),
    "d_head": (),
    "d_vocab": (),
    "n_ctx": (),
    "d_vocab_out": (None,),
    "positional_embedding_type": (None,),
    "attention_dir": (None,),
    "attn_scale": (None, 1.5),
    "use_attn_scale": (None, True),
    "scale_attn_by_inverse_layer_idx": (None, True),
    "default_prepend_bos": (None, True),
    "bos_token_id": (None,),
    "model_name": (None, "x"),
    "normalization_type": (None,),
    "attn_only": (True,),
    "final_rms": (None,),
    "n_key_value_heads": (None,),
    "attn_scores_soft_cap": (None, 1.5),
    "num_experts": (None,),
}


@pytest.mark.parametrize("key", KEYS)
def test_values_of_a_wrong_type(key: str) -> None:
    for value in WRONG:
        if not any(value is each for each in KEYS[key]):
            Ours(ModelError, key).of(lambda v=value: Config.from_mapping(SIZES | {key: v}))


@pytest.mark.parametrize(
    "change",
    [
        {"bos_token_id": -1},
        {"bos_token_id": 13},
        {"bos_token_id": 999},
        {"attn_only": 1},
        {"use_attn_scale": 0},
        {"n_layers": 10**9},
        {"n_layers": 10_001},
        {"d_model": 10**12},
    ],
)
def test_values_that_no_model_has(change: dict[str, Any]) -> None:
    Ours(ModelError, next(iter(change))).of(lambda: Config.from_mapping(SIZES | change))


@pytest.mark.parametrize(
    "change",
    [
        {"attn_scale": 2.0},
        {"attn_scale": ("x", "y")},
        {"attn_scale": (True, True)},
        {"positional_embedding_type": []},
        {"n_layers": np.ones(2)},
        {"model_name": 3},
    ],
)
def test_a_configuration_built_by_hand(change: dict[str, Any]) -> None:
    sizes = {key: value for key, value in SIZES.items() if key != "attn_only"}
    Ours(ModelError, next(iter(change))).of(lambda: Config(**sizes | change))


def test_numpy_numbers_are_numbers() -> None:
    given = {key: np.int64(value) for key, value in SIZES.items() if key != "attn_only"}
    given |= {"attn_only": np.True_, "attn_scale": np.float32(1.5), "bos_token_id": np.uint8(3)}
    given |= {"scale_attn_by_inverse_layer_idx": np.False_, "default_prepend_bos": np.True_}
    config = Config.from_mapping(given)
    assert config.attn_scale == (1.5, 1.5)
    assert {type(config.n_layers), type(config.bos_token_id)} == {int}
    assert config.default_prepend_bos is True


def test_a_broken_configuration_file(tensors: Any, tmp_path: FilePath) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    for key, value in (("positional_embedding_type", []), ("n_layers", 10**9), ("n_layers", 9000)):
        (tmp_path / "config.json").write_text(json.dumps(SIZES | {key: value}))
        Ours(ModelError).of(lambda: load(tmp_path))
    Ours(ModelError, "9000 layers, as config n_layers says, got tensors of 2").of(
        lambda: load(tmp_path)
    )


# --- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        np.full((13, 7), None),
        np.full((13, 7), "1", dtype=object),
        np.full((13, 7), 1j, dtype=object),
        np.full((13, 7), float("nan"), dtype=object),
        np.full((13, 7), True, dtype=object),
        np.full((13, 7), True),
        [[1.0, 2.0], [3.0]],
    ],
)
def test_tensors_hold_numbers(wrong: Any, tensors: Any) -> None:
    Ours(ModelError, "tensor embed.W_E: wanted").of(
        lambda: from_state_dict(tensors | {"embed.W_E": wrong}, SIZES)
    )


def test_whole_numbers_are_refused_alike_from_files_and_arrays(
    tensors: Any, tmp_path: FilePath
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    tensors["embed.W_E"] = np.ones((13, 7), dtype=np.int64)
    save_file(tensors, tmp_path / "model.safetensors")
    lines = set()
    for read in (lambda: load(tmp_path), lambda: from_state_dict(tensors, SIZES)):
        with pytest.raises(ModelError) as caught:
            read()
        lines.add(str(caught.value))
    assert len(lines) == 1
    assert "tensor embed.W_E: wanted real numbers as float64" in lines.pop()


def test_buffers_may_hold_whole_numbers(tensors: Any, tmp_path: FilePath) -> None:
    tensors["blocks.0.attn.mask"] = np.ones((5, 5), dtype=np.int64)
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    save_file(tensors, tmp_path / "model.safetensors")
    digest = load(tmp_path).checkpoint.digest()
    assert digest == from_state_dict(tensors, SIZES).checkpoint.digest()
    # Of several files the one with the usual name is read.
    save_file({"other": np.ones(1)}, tmp_path / "adapter.safetensors")
    assert load(tmp_path).checkpoint.digest() == digest


@pytest.mark.parametrize(
    "change",
    [lambda t: t | {3: np.ones(1)}, lambda t: None, lambda t: [1], lambda t: list(t.items())],
)
def test_tensors_are_a_mapping_of_names(change: Any, tensors: Any) -> None:
    Ours(ModelError, "weights: wanted").of(lambda: from_state_dict(change(tensors), SIZES))


@pytest.mark.parametrize("config", [None, 3, "two-layer", [("n_layers", 1)]])
def test_a_configuration_is_a_mapping(config: Any, tensors: Any) -> None:
    Ours(ModelError, "config: wanted a mapping").of(lambda: from_state_dict(tensors, config))


@pytest.mark.parametrize(
    "place", [None, 3, b"two-layer", "", "a" * 5000, "a/" * 3000, "a\0b"], ids=range(7)
)
def test_places_that_no_model_can_have(place: Any) -> None:
    Ours(FileError, "model").of(lambda: load(place))


# --- budgets and labels ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nodes", "seconds", "memory"])
@pytest.mark.parametrize("limit", ["x", [], 1j, True, np.True_, -1, np.float64("nan"), np.ones(2)])
def test_budgets_are_numbers(name: str, limit: Any) -> None:
    Ours(PathExpandError, f"budget {name}: wanted").of(lambda: Budget(**{name: limit}))


@pytest.mark.parametrize("wrong", [10, 1.5, "10", {"seconds": 1}, False, 0])
def test_a_budget_is_a_budget(wrong: Any, random: Model) -> None:
    budget = Ours(PathExpandError, "budget: wanted a Budget, such as Budget")
    run = random.run([1, 2, 3])
    for ask in (run.paths, run.scores, run.why):
        arguments = () if ask == run.paths else ("L1H0",)
        budget.of(lambda ask=ask, given=arguments: ask(*given, budget=wrong))  # type: ignore[misc]
    budget.of(lambda: random.dataset_paths([[1, 2], [3]], target=1, budget=wrong))


@pytest.mark.parametrize("wrong", [3, 1.5, None, True])
def test_lists_are_lists(wrong: Any, model: Model) -> None:
    for ask in (
        lambda: importance(model.checkpoint, ["a b"], queries=[wrong]),
        lambda: copying(model.checkpoint, 3),
        lambda: detect(model.checkpoint, behaviours=3),
        lambda: detect_on(model.checkpoint, 3),
        lambda: detect(model.checkpoint, seed=True),
        lambda: qk(model.checkpoint, "L1H0", key=""),
    ):
        Ours(PathExpandError, "wanted").of(ask)


def test_a_budget_of_suffixes_is_whole_and_numpy_numbers_are_numbers() -> None:
    for limit in (1.5, 1.0, float("inf"), np.float64(2)):
        Ours(PathExpandError, "budget nodes: wanted a whole number").of(
            lambda limit=limit: Budget(nodes=limit)
        )
    budget = Budget(nodes=np.int64(3), seconds=np.float32(0.5), memory=np.uint64(7))  # type: ignore[arg-type]
    assert budget == Budget(nodes=3, seconds=0.5, memory=7)
    assert type(budget.nodes) is int


@pytest.mark.parametrize(
    "call",
    [
        lambda: Head.parse(f"L{LONG}H0"),
        lambda: Head.parse(f"L0H{LONG}"),
        lambda: Head.parse(None),  # type: ignore[arg-type]
        lambda: Head(10**5000, 0),
        lambda: Head(0, -(10**5000)),
        lambda: Path.parse(f"embed > L{LONG}H0"),
        lambda: Path.parse(LONG),
        lambda: Path(f"L{LONG}bias"),
        lambda: Path([]),  # type: ignore[arg-type]
        lambda: source_key(f"L{LONG}bias"),
    ],
)
def test_endless_numbers_in_labels(call: Callable[[], object]) -> None:
    Ours(NotationError).of(call)


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["count", "expand"])
def test_endless_sizes_are_over_the_limit(
    command: str, refused: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for heads in (LONG, str(10**26), "1001", f"4,{LONG}", ",".join(["1"] * 1001)):
        said = "at most 1000 in each of at most 1000 layers"
        layers = () if "," in heads else ("--layers", 2)
        assert said in refused(command, *layers, "--heads", heads)
    assert "wanted a number" in refused(command, "--layers", 2, "--heads", "x" * 5000)
    refused(command, "--layers", LONG, "--heads", 2)
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert capsys.readouterr().out.count("at most 1000") == 2


@pytest.mark.parametrize(
    "tokens", ["1,,2", "1, ,2", ",1", "1,", ",", "[1", "1]", "[1,]", "9" * 5000]
)
def test_no_id_is_dropped(tokens: str, refused: Any) -> None:
    assert "ids such as 1,2,3" in refused("table", "--tokens", tokens)


@pytest.mark.parametrize("option", [("table", "--prompt-file"), ("dataset", "--prompts")])
@pytest.mark.parametrize("kind", ["none", "closed"])
def test_standard_input_may_be_closed(
    option: tuple[str, str], kind: str, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = None
    if kind == "closed":
        stream = open(sys.executable)  # noqa: PTH123, SIM115
        stream.close()
    monkeypatch.setattr(sys, "stdin", stream)
    assert "standard input: wanted an open stream" in refused(*option, "-")


@pytest.mark.parametrize("option", [("table", "--prompt-file"), ("dataset", "--prompts")])
@pytest.mark.parametrize("name", ["x" * 5000, "", "a\0b"], ids=range(3))
def test_files_that_cannot_be(option: tuple[str, str], name: str, refused: Any) -> None:
    assert "cannot read" in refused(*option, name)


@pytest.mark.parametrize("first", ['{"text": "a"', "{'text': 'a'}", ' {"text"', '{"prompt": "a"}'])
def test_a_broken_first_object_is_no_prose(first: str, refused: Any, tmp_path: FilePath) -> None:
    for start in ("", "\ufeff", "\n\n"):
        (tmp_path / "p.txt").write_text(f'{start}{first}\n{{"text": "b"}}\n', encoding="utf-8")
        line = refused("dataset", "--prompts", tmp_path / "p.txt")
        assert "wanted a JSON object" in line
        assert "is written as" in line


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_a_byte_order_mark_is_skipped(
    name: str, tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = []
    for start in ("", "\ufeff"):
        (tmp_path / name).write_text(start + '{"text": "to be"}\n', encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            main(["dataset", "--prompts", str(tmp_path / name), "--format", "csv"])
        outs.append((ended.value.code, capsys.readouterr().out))
    assert outs[0] == outs[1]
    assert outs[0][0] == 0


NO_FLAGS: dict[str, Callable[[Model], object]] = {
    "centred of a target": lambda m: m.run([1, 2]).paths(1, centred="x"),  # type: ignore[arg-type]
    "centred of norms": lambda m: m.paths(centred="no"),  # type: ignore[arg-type]
    "centred of totals": lambda m: m.run([1, 2]).total(centred=2),  # type: ignore[arg-type]
    "centred of an OV": lambda m: m.circuits.ov("L0H0", centred="no"),  # type: ignore[arg-type]
    "scaled": lambda m: m.circuits.qk("L0H0", scaled=1),  # type: ignore[arg-type]
    "prepend_bos": lambda m: m.run("to", prepend_bos="no"),  # type: ignore[arg-type]
    "force": lambda m: m.run([1, 2]).graph(force="no"),  # type: ignore[arg-type]
    "folded": lambda m: m.run([1, 2]).graph(folded=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", NO_FLAGS)
def test_what_is_neither_true_nor_false_is_refused(model: Model, name: str) -> None:
    Ours(PathExpandError, "True").of(lambda: NO_FLAGS[name](model))


def test_flags_of_numpy_are_flags(model: Model) -> None:
    assert model.circuits.ov("L0H0", centred=np.bool_(True)).name  # type: ignore[arg-type]


def test_truth_is_no_token(model: Model) -> None:
    Ours(PathExpandError, "token id").of(
        lambda: model.circuits.skip_trigrams("L0H0", corpus=[True, 2])
    )


def test_a_number_that_is_too_large_is_told_what_would_not_be(model: Model) -> None:
    Ours(PathExpandError, f"at most {sys.maxsize}").of(lambda: model.paths(top=sys.maxsize + 1))


def test_methods_of_circuits_explain_themselves(model: Model) -> None:
    method = model.circuits.ov
    assert inspect.ismethod(method) and method.__doc__ and "OV circuit" in method.__doc__
    assert list(inspect.signature(method).parameters) == ["heads", "centred"]
    assert "checkpoint" not in pydoc.render_doc(method).split("Give")[0]


REFUSED = {
    "scores --out": ["scores", "--out", ""],
    "graph --load": ["graph", "--load", ""],
    "table --out x.xlsx": ["table", "--out", "x.xlsx"],
    "total --out x.PARQUET": ["total", "--out", "x.PARQUET"],
    "empty text": ["circuits", "--skip-trigrams", "L1H0", "--text", os.devnull],
    "text of no pair": ["circuits", "--bigrams", "--text", os.devnull],
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_of_the_wrong_kind_are_refused(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: FilePath, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(REFUSED[name])
    out, err = capsys.readouterr()
    assert done.value.code == 2 and not out and len(err.splitlines()) == 1
    assert "corpus" not in err and ".:" not in err and "wanted" in err
    assert not list(tmp_path.iterdir())


def test_a_format_that_is_named_may_have_any_file(tmp_path: FilePath) -> None:
    file = tmp_path / "table.xlsx"
    with pytest.raises(SystemExit) as done:
        main(["total", "--out", str(file), "--format", "csv"])
    assert done.value.code == 0 and file.read_text().startswith("part,")


@pytest.mark.parametrize(
    ("model_name", "by"), [("one-layer", "composition"), ("zero-layer", "head")]
)
def test_what_a_model_has_none_of_is_said(model_name: str, by: str) -> None:
    found = load(model_name).circuits.importance(["to be or not"], parts=(by,))
    table = found.table(by)  # type: ignore[arg-type]
    assert len(table) == 0 and any(claim.startswith(f"There is no {by}") for claim in table.claims)


def test_one_token_is_one_token(model: Model) -> None:
    told = dict(model.circuits.skip_trigrams("L0H0", context=1).about())
    assert told["context"].startswith("1 token,")
