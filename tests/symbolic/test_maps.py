import pytest

from pathexpand.errors import CompositionError, NotationError
from pathexpand.symbolic import (
    B_U,
    INPUT,
    LOGITS,
    STREAM,
    W_E,
    W_POS,
    W_U,
    LinearMap,
    PositionMap,
    Space,
    Term,
    constant,
    ov,
)


def test_the_standard_maps_have_the_spaces_of_the_design():
    assert (W_E.source, W_E.target) == (W_POS.source, W_POS.target) == (INPUT, STREAM)
    assert (ov("L0H1").source, ov("L0H1").target) == (STREAM, STREAM)
    assert (W_U.source, W_U.target) == (STREAM, LOGITS)
    assert (B_U.source, B_U.target) == (INPUT, LOGITS)
    assert constant("L0bias") == LinearMap("b", "L0", INPUT, STREAM)


@pytest.mark.parametrize("name", ["", "W E", "A", "Id", "Id_x", "1W", "W-E"])
def test_names_that_could_not_be_read_back_are_refused(name):
    with pytest.raises(NotationError):
        LinearMap(name, "", STREAM, STREAM)


@pytest.mark.parametrize(
    "build", [lambda: Space("a b"), lambda: PositionMap(""), lambda: ov("a^b")]
)
def test_labels_that_could_not_be_read_back_are_refused(build):
    with pytest.raises(NotationError):
        build()


@pytest.mark.parametrize("label", ["L0", "embed", "L00bias", "Lbias", ""])
def test_unknown_constants_are_refused(label):
    with pytest.raises(NotationError):
        constant(label)


@pytest.mark.parametrize(
    "word", [(W_U, W_E), (W_E, W_E), (W_E, W_U, ov("L0H0")), (ov("L0H0"), W_E), (W_E, B_U)]
)
def test_words_of_maps_that_do_not_meet_are_refused(word):
    with pytest.raises(CompositionError):
        Term((), word)


def test_an_identity_in_a_space_the_word_does_not_start_in_is_refused():
    with pytest.raises(CompositionError):
        Term((), (W_E,), at=STREAM)
    assert Term((), (), at=LOGITS) != Term((), ())
