"""What trains features: all of it that runs without torch, and the fit where torch is there."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pathexpand.errors import ModelError, PathExpandError
from pathexpand.model.checkpoint import Checkpoint, checkpoint_from_state_dict, read_checkpoint
from pathexpand.model.forward import forward, logits
from pathexpand.train.features import files, measure, merge, passing, rows
from pathexpand.train.features.dictionary import Dictionary
from pathexpand.train.features.site import MlpSite, StreamSite, measured
from tests.api.models import SIZES, tensors

FAMILIES = Path(__file__).parents[1] / "reference" / "families"
FOLLOWED = {"gpt2", "gpt2-silu", "llama", "llama-bias", "llama-tied", "qwen2"}
REFUSED = {"bert", "bloom", "falcon-alibi", "gemma2", "gpt_neo-local", "gpt_neox", "mistral"}


def small(seed: int = 0, **raw: object) -> Checkpoint:
    config = SIZES | {"n_ctx": 9, "normalization_type": "LN", "act_fn": "gelu"} | raw
    return checkpoint_from_state_dict(tensors(seed, scale=0.6), config)


def batch(checkpoint: Checkpoint, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(checkpoint.config.d_vocab, size=shape)


def drawn(
    n_features: int, d_in: int, d_out: int, *, seed: int = 0, skip: bool = False
) -> Dictionary:
    rng = np.random.default_rng(seed)
    return Dictionary(
        W_enc=rng.normal(size=(n_features, d_in)),
        b_enc=rng.normal(size=n_features),
        threshold=rng.uniform(size=n_features),
        W_dec=rng.normal(size=(n_features, d_out)),
        b_dec=rng.normal(size=d_out),
        skip=rng.normal(size=(d_in, d_out)) if skip else None,
    )


def dense(checkpoint: Checkpoint, tokens: np.ndarray):
    mask = np.ones_like(tokens, dtype=bool)
    return forward(checkpoint.weights, checkpoint.config, tokens, mask)


@pytest.mark.parametrize("name", ["dictionary", "files", "merge", "rows"])
def test_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"pathexpand.train.features.{name}")
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("name", sorted(FOLLOWED))
def test_the_pass_follows_a_family(name: str) -> None:
    checkpoint = read_checkpoint(FAMILIES / name)
    passing.check_form(checkpoint)
    tokens = batch(checkpoint, (2, 7))
    stream = passing.last_stream(checkpoint, tokens, dtype=np.float64)
    wanted = dense(checkpoint, tokens).residual[-1]
    assert np.allclose(stream, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="another form"):
        passing.check_form(read_checkpoint(FAMILIES / name))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_pass_in_steps_is_a_pass_at_once(name: str) -> None:
    checkpoint = read_checkpoint(FAMILIES / name)
    tokens, kept = batch(checkpoint, (2, 7)), passing.Kept()
    parts = [
        passing.last_stream(checkpoint, tokens[:, start:end], kept=kept, dtype=np.float64)
        for start, end in ((0, 3), (3, 4), (4, 7))
    ]
    whole = passing.last_stream(checkpoint, tokens, dtype=np.float64)
    assert np.allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=1e-12)
    forgetful = passing.last_stream(checkpoint, tokens[:, 4:], dtype=np.float64)
    assert not np.allclose(forgetful, whole[:, 4:], rtol=0, atol=1e-3)


def test_replacing_a_part_by_itself_changes_nothing() -> None:
    checkpoint = small()
    tokens = batch(checkpoint, (2, 6))
    block = checkpoint.weights.block(1)
    whole = passing.last_stream(checkpoint, tokens, dtype=np.float64)

    def same(reads: np.ndarray) -> np.ndarray:
        return passing.written(block.mlp, reads)

    by_mlp = passing.last_stream(checkpoint, tokens, mlps={1: same}, dtype=np.float64)
    by_stream = passing.last_stream(
        checkpoint, tokens, streams={1: lambda stream: stream}, dtype=np.float64
    )
    wrong_layer = passing.last_stream(checkpoint, tokens, mlps={0: same}, dtype=np.float64)
    assert np.array_equal(by_mlp, whole)
    assert np.array_equal(by_stream, whole)
    assert not np.allclose(wrong_layer, whole, atol=1e-3)


def test_losses_are_those_of_the_softmax() -> None:
    checkpoint = small()
    tokens = batch(checkpoint, (2, 6))
    stream = passing.last_stream(checkpoint, tokens, dtype=np.float64)
    share = np.exp(logits(checkpoint.weights, stream))
    share /= share.sum(axis=-1, keepdims=True)
    wanted = [
        [-np.log(share[row, place, tokens[row, place + 1]]) for place in range(5)]
        for row in range(2)
    ]
    assert np.allclose(passing.losses(checkpoint, stream, tokens), wanted, atol=1e-12)


def test_sampled_text_has_the_models_own_shares() -> None:
    checkpoint = small()
    text = passing.sample(checkpoint, start=3, rows=20_000, length=2, seed=5)
    assert (text[:, 0] == 3).all()
    assert np.array_equal(text, passing.sample(checkpoint, start=3, rows=20_000, length=2, seed=5))
    scores = logits(checkpoint.weights, dense(checkpoint, text[:1, :1]).residual[-1])[0, 0]
    share = np.exp(scores - scores.max())
    share /= share.sum()  # (d_vocab,)
    found = np.bincount(text[:, 1], minlength=len(share)) / len(text)
    # Five standard deviations of a share of 20,000 draws are below 0.018.
    assert np.abs(found - share).max() < 0.018
    assert np.abs(found - np.roll(share, 1)).max() > 0.05


def test_sampling_beyond_the_context_is_refused() -> None:
    with pytest.raises(ModelError, match="length: wanted 1 to 8, got 9"):
        passing.sample(small(), start=0, rows=1, length=9, seed=0)


def test_rows_are_what_the_dense_pass_had() -> None:
    checkpoint = small()
    tokens = batch(checkpoint, (3, 5))
    run = dense(checkpoint, tokens)
    stream = rows.stream_rows(checkpoint, tokens, 1, dtype=np.float64)
    assert np.array_equal(stream.reads, run.residual[1].reshape(-1, 7))
    assert stream.writes is stream.reads
    for layer, found in enumerate(rows.mlp_rows(checkpoint, tokens, dtype=np.float64)):
        written = passing.written(checkpoint.weights.block(layer).mlp, found.reads)
        assert np.allclose(written, found.writes, atol=1e-12)
        assert np.allclose(found.writes, run.layers[layer].mlp_out.reshape(-1, 7), atol=1e-12)


def test_a_model_without_mlps_has_no_transcoders() -> None:
    checkpoint = read_checkpoint("two-layer")
    site = MlpSite(checkpoint=checkpoint, layers=(0, 1))
    with pytest.raises(ModelError, match="wanted an MLP"):
        site.rows(np.zeros((1, 3), dtype=np.int64))


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="layer: wanted 0 to 1, got 2"):
        StreamSite(checkpoint=read_checkpoint("two-layer"), layers=(2,))


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ModelError, match="wanted at least one layer"):
        MlpSite(checkpoint=read_checkpoint("zero-layer"), layers=())


def test_quality_by_hand() -> None:
    one = Dictionary(
        W_enc=np.eye(2),
        b_enc=np.zeros(2),
        threshold=np.array([1.0, 9.0]),
        W_dec=np.eye(2),
        b_dec=np.zeros(2),
    )
    # A pre-activation at the threshold is not above it, so only the 3 comes through.
    reads = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = measure.quality(one, rows.Rows(reads=reads, writes=reads))
    assert found == measure.Quality(fvu=(1 + 4 + 16) / 4, l0=0.5, dead=1, positions=2)


def test_the_mean_has_a_fvu_of_one() -> None:
    reads = np.random.default_rng(0).normal(size=(11, 3))
    empty = Dictionary(
        W_enc=np.zeros((2, 3)),
        b_enc=np.zeros(2),
        threshold=np.ones(2),
        W_dec=np.zeros((2, 3)),
        b_dec=reads.mean(axis=0),
    )
    found = measure.quality(empty, rows.Rows(reads=reads, writes=reads))
    assert found.fvu == pytest.approx(1, abs=1e-12)
    assert (found.l0, found.dead) == (0, 2)


def test_a_perfect_dictionary_leaves_the_loss_as_it_is() -> None:
    checkpoint = small()
    site = StreamSite(checkpoint=checkpoint, layers=(1,))
    # Each direction and its opposite: a ReLU loses nothing.
    both = np.concatenate([np.eye(7), -np.eye(7)])
    perfect = Dictionary(
        W_enc=both, b_enc=np.zeros(14), threshold=np.zeros(14), W_dec=both, b_dec=np.zeros(7)
    )
    found = measured(site, [perfect], batch(checkpoint, (3, 6)), np.float64)
    (layer,) = found["layers"]
    assert layer["fvu"] < 1e-28
    assert layer["l0"] == 7
    assert layer["spliced"] == pytest.approx(found["own"], abs=1e-12)
    assert abs(layer["mean"] - found["own"]) > 1e-3


@pytest.mark.parametrize("skip", [False, True])
def test_files_give_back_what_was_written(tmp_path: Path, skip: bool) -> None:
    layers = tuple(merge.rounded(drawn(11, 5, 5, seed=seed, skip=skip)) for seed in range(2))
    for name, content in files.transcoder_files(layers, model="small").items():
        (tmp_path / name).write_bytes(content)
    reads = np.random.default_rng(9).normal(size=(3, 5))
    for one, again in zip(layers, files.read_transcoders(tmp_path, n_layers=2), strict=True):
        assert np.array_equal(again(reads), one(reads))
    assert not np.allclose(again(reads), layers[0](reads), atol=1e-2)


def test_files_are_half_as_long_where_that_loses_nothing() -> None:
    array = np.array([1.0, 3.0, 2049.0])  # the last one wants twelve bits
    stored = files.stored_form({"half": array[:2], "single": array, "rounded": array / 7})
    assert {name: each.dtype for name, each in stored.items()} == {
        "half": np.float16,
        "single": np.float32,
        "rounded": np.float32,
    }
    assert np.array_equal(stored["single"], array)


def test_sae_files_are_saelens_way_round(tmp_path: Path) -> None:
    one = merge.rounded(drawn(11, 5, 5))
    written = files.sae_files(one, model="small", hook="blocks.1.hook_resid_pre", context=9)
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    assert files.read_tensors(tmp_path / files.SAE_WEIGHTS)["W_enc"].shape == (5, 11)
    reads = np.random.default_rng(9).normal(size=(3, 5))
    assert np.array_equal(files.read_sae(tmp_path)(reads), one(reads))


@pytest.mark.parametrize(
    ("name", "shape"), [("b_enc", (3,)), ("W_dec", (3, 5)), ("b_dec", (4,)), ("skip", (4, 5))]
)
def test_shapes_that_do_not_meet_are_refused(name: str, shape: tuple[int, ...]) -> None:
    arrays = {
        "W_enc": np.zeros((11, 5)),
        "b_enc": np.zeros(11),
        "threshold": np.zeros(11),
        "W_dec": np.zeros((11, 5)),
        "b_dec": np.zeros(5),
    }
    Dictionary(**arrays)
    with pytest.raises(ModelError, match=f"features {name}: wanted"):
        Dictionary(**arrays | {name: np.zeros(shape)})


def picked(features: Dictionary, order: list[int], *, write: bool = True) -> Dictionary:
    """Give features again and again, in another order; without `write`, with rows of their own."""
    rng = np.random.default_rng(4)
    own = rng.normal(size=(len(order), features.W_dec.shape[1]))
    return Dictionary(
        W_enc=features.W_enc[order],
        b_enc=features.b_enc[order],
        threshold=features.threshold[order],
        W_dec=features.W_dec[order] if write else own,
        b_dec=features.b_dec,
        skip=features.skip,
    )


ORDER = [2, 0, 2, 1, 4, 2, 3, 0]
FIRSTS = [0, 1, 3, 4, 6]


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_merging_leaves_the_function_as_it_is(skip: bool, write: bool) -> None:
    many = picked(drawn(5, 7, 3, skip=skip), ORDER, write=write)
    reads = np.random.default_rng(9).normal(size=(53, 7))
    (one,) = merge.merged([many])
    assert np.array_equal(one.W_enc, many.W_enc[FIRSTS])
    assert np.allclose(one.encode(reads), many.encode(reads)[:, FIRSTS], rtol=0, atol=1e-12)
    assert np.allclose(one(reads), many(reads), rtol=0, atol=1e-12)
    assert merge.mergings([many]) == (merge.Merging(before=8, after=5, padding=0),)
    forgetful = picked(many, FIRSTS)  # drops the others' rows
    assert not np.allclose(forgetful(reads), many(reads), atol=1e-3)
    assert merge.mergings([one]) == (merge.Merging(before=5, after=5, padding=0),)


@pytest.mark.parametrize("name", ["W_enc", "b_enc", "threshold"])
def test_features_that_differ_anywhere_stay_apart(name: str) -> None:
    many = picked(drawn(5, 7, 3), ORDER)
    getattr(many, name)[5] += 2.0**-20  # of the third feature that starts like the first
    assert merge.mergings([many])[0].after == 6


def test_all_layers_stay_as_wide_as_the_widest() -> None:
    layers = [
        picked(drawn(5, 7, 3, seed=3), ORDER),
        drawn(8, 7, 3),
        picked(drawn(7, 7, 3), [0] * 8),
    ]
    reads = np.random.default_rng(9).normal(size=(53, 7))
    found = merge.merged(layers[::2])
    assert [len(each.b_enc) for each in found] == [5, 5]
    assert [each.padding for each in merge.mergings(layers[::2])] == [0, 4]
    assert not found[1].encode(reads * 1e6)[:, 1:].any()
    for one, many in zip(merge.merged(layers), layers, strict=True):
        assert len(one.b_enc) == 8
        assert np.allclose(one(reads), many(reads), rtol=0, atol=1e-12)


def test_a_merging_that_adds_features_is_refused() -> None:
    with pytest.raises(ModelError, match="padding: wanted"):
        merge.Merging(before=5, after=6, padding=0)


def test_pairs_that_write_the_same_are_counted() -> None:
    many = picked(drawn(5, 7, 3), ORDER)  # of three features three pairs, of two features one
    assert merge.alike(many) == {"decoder": 4, "whole": 4}
    many.W_enc[0, 0] += 1
    assert merge.alike(many) == {"decoder": 4, "whole": 2}
    many.W_dec[7] *= 3  # another length, the same direction
    assert merge.alike(many) == {"decoder": 4, "whole": 1}
    many.W_dec[7, 0] += 1
    assert merge.alike(many) == {"decoder": 3, "whole": 1}
    assert merge.alike(merge.padded(drawn(5, 7, 3), 11)) == {"decoder": 0, "whole": 0}


def test_starting_rows_point_apart() -> None:
    drawn_rows = np.random.default_rng(3).normal(size=(11, 5))
    repeated = np.concatenate([drawn_rows[:4], drawn_rows[[2, 0]] * 3, drawn_rows[1:]])
    repeated[5] *= 1 + 1e-7  # what another order of sums leaves
    found = rows.distinct(repeated, 11)
    assert found == [0, 1, 2, 3, *range(9, 16)]
    unit = repeated[found] / np.linalg.norm(repeated[found], axis=1, keepdims=True)
    assert np.triu(unit @ unit.T, 1).max() < rows.SAME
    with pytest.raises(PathExpandError, match="wanted 12 that point apart, got 11"):
        rows.distinct(repeated, 12)
    with pytest.raises(PathExpandError, match="got 0"):
        rows.distinct(np.zeros((3, 5)), 1)


def texts_with_one_beginning() -> rows.Rows:
    """Give rows of which every second one is one of three: as the first tokens of texts are."""
    rng = np.random.default_rng(6)
    reads = rng.normal(size=(997, 7)).astype(np.float32)
    reads[::2] = reads[rng.integers(3, size=len(reads[::2])) * 2 + 1]
    return rows.Rows(reads=reads, writes=np.tanh(reads[:, ::-1][:, :5] * 2))


def test_no_two_features_are_fitted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    fit = importlib.import_module("pathexpand.train.features.fit")
    monkeypatch.setattr(fit, "DEAD_AFTER", 3)  # so that features die and are revived
    data, plan = texts_with_one_beginning(), fit.Plan(n_features=61, active=3, steps=80, rows=13)
    revived = []

    def spied(self: object, *given: object) -> object:
        revived.append(int((self.idle > 3).sum()))  # type: ignore[attr-defined]
        return revival(self, *given)

    revival = fit.Fit.revival
    monkeypatch.setattr(fit.Fit, "revival", spied)
    for _, features in fit.fit(data, plan, seed=0, report_every=20):
        assert merge.mergings([merge.rounded(features)])[0].after == 61
        assert merge.alike(features)["whole"] == 0
    assert max(revived) > 1
    # The fault that this guards against: rows as they come.
    monkeypatch.setattr(fit, "distinct", lambda directions, wanted: list(range(wanted)))
    *_, (_, features) = fit.fit(data, plan, seed=0, report_every=20)
    assert merge.mergings([merge.rounded(features)])[0].after < 61


WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None\n"
    "from pathexpand.train.{}__main__ import main\n"
    "main(sys.argv[1:])"
)


def without_torch(*arguments: str, of: str = "features.") -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-c", WITHOUT_TORCH.format(of), *arguments]
    return subprocess.run(code, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [[], ["sae"], ["transcoders"]])
def test_help_wants_no_torch(command: list[str]) -> None:
    done = without_torch(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage:")
    assert "--help" in done.stdout


def test_the_models_own_training_helps_and_wants_torch_too(tmp_path: Path) -> None:
    done = without_torch("--help", of="")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Usage:")
    text = tmp_path / "text"
    text.touch()
    files = ["--shakespeare", str(text), "--bible", str(text), "--out", str(tmp_path / "none")]
    done = without_torch(*files, of="")
    assert done.returncode == 2
    assert done.stderr == "error: torch: wanted for training; pip install 'pathexpand[train]'\n"
    assert [*tmp_path.iterdir()] == [text]


def test_training_wants_torch_and_says_so(tmp_path: Path) -> None:
    wanted = ["--model", "x", "--origin", "x", "--licence", "x", "--out", str(tmp_path / "none")]
    done = without_torch("transcoders", *wanted)
    assert done.returncode == 2
    assert done.stderr == "error: torch: wanted for training; pip install 'pathexpand[train]'\n"
    assert not list(tmp_path.iterdir())
