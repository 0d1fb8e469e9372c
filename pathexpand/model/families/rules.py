"""How families of checkpoints store weights: patterns of tensors, and the fields they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pathexpand.model.assembly import Rule
from pathexpand.model.config import Config
from pathexpand.model.parts import Array

Role = Literal["Q", "K", "V", "O", "in", "gate", "out"]
Shape = Callable[[Config], tuple[int, ...]]
Split = Callable[[Array, Config], Iterable[tuple[str, Array]]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A tensor of any model of a family: its name's end, its shape and the fields it fills."""

    name: str
    shape: Shape
    split: Split
    tall: tuple[str, ...] = ()
    needed: bool = True

    def rule(self, config: Config, at: str = "", layer: int | None = None) -> Rule:
        """Give the rule for a model of certain sizes, and one of its layers."""
        return Rule(
            at + self.name,
            self.shape(config),
            lambda array: self.split(array, config),
            self.needed,
            layer,
            self.tall,
        )


def rules(
    config: Config,
    top: Iterable[Pattern],
    layer: Iterable[Pattern],
    layers: str,
) -> list[Rule]:
    """Give the rules of a whole model; the tensors of layer n begin with `LAYERS.n.`."""
    found = [pattern.rule(config) for pattern in top]
    each = tuple(layer)
    for n in range(config.n_layers):
        found += [pattern.rule(config, f"{layers}.{n}.", n) for pattern in each]
    return found


# --- norms and tables -----------------------------------------------------------------------------


def norm(name: str, *fields: str, bias: bool = True, plus_one: bool = False) -> tuple[Pattern, ...]:
    """A norm of the stream, which may stand in several places; Gemma adds 1 to the weight."""

    def weight(array: Array, _: Config) -> Iterator[tuple[str, Array]]:
        value = array.astype(np.float64) + 1 if plus_one else array
        return ((f"{field}.w", value) for field in fields)

    def shift(array: Array, _: Config) -> Iterator[tuple[str, Array]]:
        return ((f"{field}.b", array) for field in fields)

    both = (Pattern(f"{name}.weight", _stream, weight), Pattern(f"{name}.bias", _stream, shift))
    return both if bias else both[:1]


def head_norms(
    query: str, key: str, *, bias: bool = False, across: bool = False, plus_one: bool = False
) -> tuple[Pattern, ...]:
    """Norms of queries and keys: of every head with the same weight, or across all heads."""
    found = []
    for name, field, role in ((query, "q_norm", "Q"), (key, "k_norm", "K")):
        for ending, part in (("weight", "w"), ("bias", "b"))[: 2 if bias else 1]:

            def shape(config: Config, role: str = role) -> tuple[int, ...]:
                return (_count(role, config) * config.d_head if across else config.d_head,)

            def split(
                array: Array, config: Config, at: str = f"attn.{field}.{part}"
            ) -> Iterator[tuple[str, Array]]:
                value = array.astype(np.float64) + 1 if plus_one else array
                yield at, value.reshape(-1, config.d_head)  # (1 or heads, d_head)

            found.append(Pattern(f"{name}.{ending}", shape, split))
    return tuple(found)


def table(name: str, *fields: str) -> Pattern:
    """The token embedding, which may be the unembedding as well: (d_vocab, d_model)."""
    return Pattern(
        name,
        lambda config: (config.d_vocab, config.d_model),
        lambda array, _: ((field, array) for field in fields),
        fields,
    )


def positions(name: str, *, skipped: int = 0) -> Pattern:
    """Learned positions, after some rows that are never used: (position, d_model)."""
    return Pattern(
        name,
        lambda config: (config.n_ctx + skipped, config.d_model),
        lambda array, _: [("pos", array[skipped:])],
        ("pos",),
    )


def logit_bias(name: str) -> Pattern:
    """The bias of the unembedding: (d_vocab,)."""
    return Pattern(name, lambda config: (config.d_vocab,), lambda array, _: [("b_U", array)])


def unused(name: str, shape: Shape) -> Pattern:
    """A tensor that may be there and that nothing is computed from."""
    return Pattern(name, shape, lambda array, _: (), needed=False)


# --- matrices -------------------------------------------------------------------------------------


def linear(name: str, *roles: Role, bias: bool = False) -> tuple[Pattern, ...]:
    """A matrix stored (out, in), or several that share an input, one below the other."""
    return _matrices(name, roles, bias=bias, turned=True)


def conv1d(name: str, *roles: Role, bias: bool = True) -> tuple[Pattern, ...]:
    """A matrix stored (in, out), or several side by side, as GPT-2 has them."""
    return _matrices(name, roles, bias=bias, turned=False)


def interleaved(name: str, *, bias: bool) -> tuple[Pattern, ...]:
    """Queries, keys and values of each group of heads together, one group after the other.

    A group is a key-value head: all its queries, then its key, then its value. Stored (out, in).
    """

    def count(config: Config) -> int:
        return config.n_heads + 2 * config.n_key_value_heads

    def parts(array: Array, config: Config) -> Iterator[tuple[Role, Array]]:
        grouped = array.reshape(config.n_key_value_heads, -1, config.d_head, *array.shape[1:])
        yield "Q", grouped[:, :-2].reshape(-1, *array.shape[1:])  # (head * d_head, ...)
        yield "K", grouped[:, -2].reshape(-1, *array.shape[1:])
        yield "V", grouped[:, -1].reshape(-1, *array.shape[1:])

    def weight(array: Array, config: Config) -> Iterator[tuple[str, Array]]:
        return (_weight(role, part.T, config) for role, part in parts(array, config))

    def shift(array: Array, config: Config) -> Iterator[tuple[str, Array]]:
        return (_bias(role, part, config) for role, part in parts(array, config))

    both = (
        Pattern(f"{name}.weight", lambda c: (count(c) * c.d_head, c.d_model), weight),
        Pattern(f"{name}.bias", lambda c: (count(c) * c.d_head,), shift),
    )
    return both if bias else both[:1]


def _matrices(
    name: str, roles: tuple[Role, ...], *, bias: bool, turned: bool
) -> tuple[Pattern, ...]:
    def shape(config: Config) -> tuple[int, ...]:
        outs = sum(_outs(role, config) for role in roles)
        return (outs, _ins(roles[0], config)) if turned else (_ins(roles[0], config), outs)

    def weight(array: Array, config: Config) -> Iterator[tuple[str, Array]]:
        matrix, start = array.T if turned else array, 0  # (in, out)
        for role in roles:
            stop = start + _outs(role, config)
            yield _weight(role, matrix[:, start:stop], config)
            start = stop

    def shift(array: Array, config: Config) -> Iterator[tuple[str, Array]]:
        start = 0
        for role in roles:
            stop = start + _outs(role, config)
            yield _bias(role, array[start:stop], config)
            start = stop

    both = (
        Pattern(f"{name}.weight", shape, weight),
        Pattern(f"{name}.bias", lambda c: (sum(_outs(role, c) for role in roles),), shift),
    )
    return both if bias else both[:1]


def _weight(role: Role, matrix: Array, config: Config) -> tuple[str, Array]:
    """Give a field and its weights from a matrix (in, out), as a view where there is one."""
    if role in ("Q", "K", "V"):
        heads = matrix.reshape(len(matrix), -1, config.d_head)  # (d_model, head, d_head)
        return f"attn.W_{role}", np.swapaxes(heads, 0, 1)  # (head, d_model, d_head)
    if role == "O":
        return "attn.W_O", matrix.reshape(-1, config.d_head, matrix.shape[1])
    return f"mlp.W_{role}", matrix


def _bias(role: Role, vector: Array, config: Config) -> tuple[str, Array]:
    if role in ("Q", "K", "V"):
        return f"attn.b_{role}", vector.reshape(-1, config.d_head)  # (head, d_head)
    return ("attn.b_O" if role == "O" else f"mlp.b_{role}"), vector


def _count(role: str, config: Config) -> int:
    return config.n_heads if role in ("Q", "O") else config.n_key_value_heads


def _outs(role: Role, config: Config) -> int:
    if role in ("Q", "K", "V"):
        return _count(role, config) * config.d_head
    return config.d_model if role in ("O", "out") else config.d_mlp


def _ins(role: Role, config: Config) -> int:
    if role == "O":
        return config.n_heads * config.d_head
    return config.d_mlp if role == "out" else config.d_model


def _stream(config: Config) -> tuple[int, ...]:
    return (config.d_model,)
