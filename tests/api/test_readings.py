"""What is read of a run: capped logits, positions, norms with a fixed and a new scale."""

from pathlib import Path

import numpy as np
import pytest

import pathexpand
from pathexpand.errors import NotationError, PathExpandError, PromptError
from pathexpand.model.tokenizer import show_token
from pathexpand.target import LogitTarget
from tests.api.models import small

PROMPT = [1, 5, 2, 2, 7]


def test_capped_logits_are_read_before_the_cap_and_the_table_says_so() -> None:
    run = small(output_logits_soft_cap=30.0).run(PROMPT)
    table = run.paths(4)
    assert table.target == "logit of #4, before the soft cap of 30"
    assert table.closes
    assert table.dense == pytest.approx(run.logits()[4])
    assert "before the soft cap of 30" in run.totals_table(target=4).target


def test_capped_logits_are_not_centred() -> None:
    run = small(output_logits_soft_cap=30.0).run(PROMPT)
    with pytest.raises(PromptError, match="a model that caps its logits at 30"):
        run.paths(4, centred=True)
    assert run.paths(4).dense == run.paths(4, centred=False).dense
    assert "minus the vocabulary mean" in small().run(PROMPT).paths(4).target


def test_a_cap_changes_no_difference_of_logits_before_it() -> None:
    plain, capped = small().run(PROMPT), small(output_logits_soft_cap=2.0).run(PROMPT)
    assert capped.paths((4, 2)).dense == plain.paths((4, 2)).dense


def test_parts_of_the_stream_add_up_with_the_fixed_scale_and_not_with_a_new_one() -> None:
    run = small().run(PROMPT)
    paths = [str(path) for path in run.model.network.paths()]
    assert np.allclose(sum(run.path_logits(path) for path in paths), run.logits(), atol=1e-11)
    assert np.allclose(run.logit_lens(-1), run.logits())
    assert abs(run.logit_lens(0) - run.path_logits("embed") - run.path_logits("pos")).max() > 0.1


@pytest.mark.parametrize("layer", [2, -2, True, "0", 1.0])
def test_a_lens_needs_a_layer(layer: object) -> None:
    with pytest.raises(PathExpandError, match="wanted a layer from 0 to 1, or -1"):
        small().run(PROMPT).logit_lens(layer)  # type: ignore[arg-type]


def test_the_three_ways_to_take_an_mlp() -> None:
    model = small()
    for mode, component in (
        ("source", "L0M"),
        ("frozen", "embed > L0M"),
        ("neurons", "embed > L0N3"),
    ):
        own = model.with_mlp(mode)  # type: ignore[arg-type]
        assert f"mlp={mode!r}" in repr(own)
        run = own.run(PROMPT)
        assert run.paths(top=3).closes
        assert np.isfinite(run.value(component))
    assert model.mlp == "source"
    with pytest.raises(PathExpandError, match="mlp: wanted source, frozen or neurons"):
        model.with_mlp("whole")  # type: ignore[arg-type]
    neurons = model.with_mlp("neurons").run(PROMPT)
    total = sum(neurons.value(f"embed > L0N{n}", 4) for n in range(11))
    whole = model.with_mlp("frozen").run(PROMPT).value("embed > L0M", 4)
    assert total == pytest.approx(whole)


def test_weights_alone_have_no_paths_through_norms() -> None:
    with pytest.raises(PathExpandError, match="wanted an attention-only model without norms"):
        small().paths()


def test_an_embedded_model_has_no_mlp_to_speak_of() -> None:
    assert "mlp" not in repr(pathexpand.load("two-layer"))


@pytest.mark.shared_models
def test_a_token_is_named_as_tables_show_it(shared_models: Path) -> None:
    """SentencePiece puts a space before a text, so encoding ' was' gives two tokens."""
    model = pathexpand.load(shared_models / "stories260k")
    run = model.run("Once upon a time, there")
    for text in (" was", ",", " Lily"):
        what = run.target(text)
        assert isinstance(what, LogitTarget)
        assert run.describe(what) == f"logit of '{text}' minus the vocabulary mean"
    assert run.target("#5") == run.target(5) == run.target("id:5")
    shown = [show_token(model.tokenizer, token) for token in range(512)]
    plain = [(n, text) for n, text in enumerate(shown) if shown.count(text) == 1]
    named = [(n, text[1:-1]) for n, text in plain if text[0] == "'" and text[1:-1].isalpha()]
    assert len(named) > 100
    assert all(run.target(f"text:{text}").token == n for n, text in named)


def test_a_query_for_neurons_says_why_there_are_none() -> None:
    with pytest.raises(NotationError, match="since MLPs are sources here, and not taken neuron"):
        small().count("embed > L0N3")
    with pytest.raises(NotationError, match="since the network has no neurons"):
        pathexpand.load("two-layer").count("embed > L0N3")
