"""The names and shapes of the tensors in a TransformerLens state dict."""

from __future__ import annotations

from collections.abc import Iterator

from pathexpand.model.config import Config

_Shape = tuple[int, ...]


def wanted_shapes(config: Config) -> dict[str, tuple[_Shape, bool]]:
    """Give every tensor's TransformerLens name with its shape and whether it must be there.

    >>> config = Config(n_layers=0, n_heads=1, d_model=3, d_head=1, d_vocab=2, n_ctx=5)
    >>> wanted_shapes(config)["embed.W_E"]
    ((2, 3), True)
    """
    stream, layout = config.d_model, config.layout
    wanted: dict[str, tuple[_Shape, bool]] = {"embed.W_E": ((config.d_vocab, stream), True)}
    if layout.post_embedding_ln:
        wanted |= {f"embed.ln.{part}": ((stream,), True) for part in ("w", "b")}
    if config.positional_embedding_type != "none":
        # Without attention, shortformer positions are read by nothing.
        needed = config.n_layers > 0 or config.positional_embedding_type == "standard"
        wanted["pos_embed.W_pos"] = ((config.n_ctx, stream), needed)
    for layer in range(config.n_layers):
        wanted |= {f"blocks.{layer}.{name}": each for name, each in _block(config)}
    kind = layout.normalization_type
    if kind is not None:
        last = kind.replace("LN", "RMS") if layout.final_rms and kind.startswith("LN") else kind
        wanted |= {f"ln_final.{part}": ((stream,), True) for part in _norm_parts(last)}
    wanted["unembed.W_U"] = ((stream, config.d_vocab_out), True)
    wanted["unembed.b_U"] = ((config.d_vocab_out,), False)
    return wanted


def _block(config: Config) -> Iterator[tuple[str, tuple[_Shape, bool]]]:
    heads, stream, head = config.n_heads, config.d_model, config.d_head
    groups, layout = config.n_key_value_heads, config.layout
    counts = {"Q": heads, "K": groups, "V": groups}
    yield from ((f"attn.W_{name}", ((n, stream, head), True)) for name, n in counts.items())
    yield "attn.W_O", ((heads, head, stream), True)
    yield from ((f"attn.b_{name}", ((n, head), False)) for name, n in counts.items())
    yield "attn.b_O", ((stream,), False)
    if layout.use_qk_norm:
        yield from ((f"attn.{name}_norm.w", ((head,), True)) for name in ("q", "k"))
    elif layout.post_norms:
        yield "attn.q_norm.w", ((heads * head,), True)
        yield "attn.k_norm.w", ((groups * head,), True)
    if layout.use_attention_sinks:
        yield "attn.sinks", ((heads,), True)
    yield from _norms(config)
    if config.d_mlp:
        yield "mlp.W_in", ((stream, config.d_mlp), True)
        if layout.gated_mlp:
            yield "mlp.W_gate", ((stream, config.d_mlp), True)
        yield "mlp.W_out", ((config.d_mlp, stream), True)
        yield "mlp.b_in", ((config.d_mlp,), False)
        yield "mlp.b_out", ((stream,), False)


def _norms(config: Config) -> Iterator[tuple[str, tuple[_Shape, bool]]]:
    kind, layout = config.layout.normalization_type, config.layout
    names = ("ln1", "ln2") if config.d_mlp else ("ln1",)
    for name in names:
        yield from ((f"{name}.{part}", ((config.d_model,), True)) for part in _norm_parts(kind))
        if layout.use_normalization_before_and_after:
            # These keep their weights when those before are folded into their neighbours.
            after = None if kind is None else kind.removesuffix("Pre")
            parts = _norm_parts(after)
            yield from ((f"{name}_post.{part}", ((config.d_model,), True)) for part in parts)


def _norm_parts(kind: str | None) -> tuple[str, ...]:
    return {"LN": ("w", "b"), "RMS": ("w",)}.get(kind or "", ())
