"""What the modules of all families share: a name, sizes, embeddings, windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pathexpand.errors import ModelError
from pathexpand.model.assembly import Plan
from pathexpand.model.config import Config
from pathexpand.model.families.rules import Pattern, table
from pathexpand.model.families.settings import Settings
from pathexpand.model.rotary import Rotary

# What stands beside weights in files and holds no learnt number: masks, angles, place numbers.
BUFFERS = (
    r"(h|layers)\.\d+\.(attn|attention|attn\.attention)\.(masked_)?bias"
    r"|.*\b(rotary_emb|maybe_rotary)\.(inv_freq|cos_cached|sin_cached)"
    r"|(.*\.)?position_ids"
)
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of checkpoints is read.

    `plan` makes, from a configuration and the names of the tensors, the plan of the model. Each
    of `prefixes` may stand before a tensor's name; `renamed` are older endings of names.
    """

    plan: Callable[[Settings, Collection[str]], Plan]
    prefixes: tuple[str, ...] = ()
    ignored: str = ""
    renamed: tuple[tuple[str, str], ...] = ()

    def name(self, stored: str) -> str:
        """Give a tensor's name without prefix, in its newest spelling."""
        prefix = next((each for each in self.prefixes if stored.startswith(each)), "")
        name = stored.removeprefix(prefix)
        for old, new in self.renamed:
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def buffers(self) -> re.Pattern[str]:
        """Give the names that are no weights."""
        return re.compile(f"{BUFFERS}|{self.ignored}" if self.ignored else BUFFERS)


def config_of(
    raw: Settings,
    *,
    layers: tuple[str, ...] = ("num_hidden_layers",),
    heads: tuple[str, ...] = ("num_attention_heads",),
    width: tuple[str, ...] = ("hidden_size",),
    context: int | None = None,
    d_head: int | None = None,
    groups: int | None = None,
    **more: Any,
) -> Config:
    """Read the sizes that every family has, under the names that a family has for them."""
    n_heads, d_model = raw.heads(*heads), raw.size(*width)
    vocabulary = raw.size("vocab_size")
    return Config(
        n_layers=raw.layers(*layers),
        n_heads=n_heads,
        n_key_value_heads=n_heads if groups is None else groups,
        d_model=d_model,
        d_head=split_evenly(raw, width, heads) if d_head is None else d_head,
        d_vocab=vocabulary,
        n_ctx=raw.size("max_position_embeddings") if context is None else context,
        bos_token_id=start_token(raw, vocabulary),
        model_name="model" if raw.get("model_name") is None else raw.get("model_name"),
        **more,
    )


def split_evenly(
    raw: Settings,
    width: tuple[str, ...] = ("hidden_size",),
    heads: tuple[str, ...] = ("num_attention_heads",),
) -> int:
    """Give the size of each head when they share a width; raises `ModelError` if they cannot."""
    d_model, n_heads = raw.size(*width), raw.heads(*heads)
    if d_model % n_heads:
        wanted = f"a divisor of {raw.name(*width)} {d_model}"
        raise ModelError(f"config {raw.name(*heads)}", wanted=wanted, got=str(n_heads))
    return d_model // n_heads


def grouped(raw: Settings, heads: int, key: str, *, default: int | None) -> int:
    """Give the number of key-value heads; raises `ModelError` if the heads do not share them."""
    groups = raw.size(key, default=default, null=True)
    if heads % groups:
        wanted = f"a divisor of the {heads} heads"
        raise ModelError(f"config {raw.name(key)}", wanted=wanted, got=str(groups))
    return groups


def stretched(raw: Settings, rotary: Rotary | None) -> int:
    """Give the longest prompt: angles that change with the length of it allow more positions."""
    key = "max_position_embeddings"
    longest = raw.size(key) * (1.0 if rotary is None else rotary.factor)
    if longest > 2**31 - 1:
        wanted = f"at most {2**31 - 1} positions, stretched as the rotary settings say"
        raise ModelError(f"config {raw.name(key)}", wanted=wanted, got=f"{longest:g}")
    return int(longest)


def start_token(raw: Settings, vocabulary: int) -> int | None:
    """Give the id of the start token, the first of a list, unless it is outside the vocabulary."""
    given = raw.get("bos_token_id")
    first = given[0] if isinstance(given, list) and given else given
    return first if type(first) is int and 0 <= first < vocabulary else None


def embeddings(
    raw: Settings, names: Collection[str], embed: str, head: str = "lm_head.weight"
) -> tuple[Pattern, ...]:
    """Give the tables of the embedding and the unembedding, which may be one and the same.

    Where the configuration does not say whether they are, they are if there is only one.
    """
    if raw.switch("tie_word_embeddings", default=head not in names):
        return (table(embed, "embed", "unembed"),)
    return table(embed, "embed"), table(head, "unembed")


def windows(raw: Settings, kinds: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
    """Give each layer's window, from words that say which layers have one."""
    if window is None and SLIDING in kinds:
        window = raw.size("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def as_mapping(raw: object) -> Mapping[str, Any]:
    """Refuse a configuration that is no mapping of names; raises `ModelError`."""
    if not isinstance(raw, Mapping):
        raise ModelError("config", wanted="a mapping of names", got=type(raw).__name__)
    return raw
