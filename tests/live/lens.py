"""What a model of TransformerLens says of itself, held against ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pathexpand
from pathexpand.frozen import MLP_MODES
from pathexpand.model.forward import capped
from tests.reference.rounding import within

Array = npt.NDArray[Any]


class Lens:
    """A model of TransformerLens, what it cached on a prompt, and ours on the same.

    `off` bounds how far two passes in the object's number format (or `single`, in float32) may be
    apart, relative to the largest number compared; it is derived where `within` is.
    """

    def __init__(self, theirs: Any, tokens: list[int], *, single: bool = False) -> None:
        import torch

        self.theirs, self.tokens, self.torch = theirs, tokens, torch
        self.ours = pathexpand.from_transformer_lens(theirs)
        self.run = self.ours.run(tokens)
        with torch.no_grad():
            logits, self.cache = theirs.run_with_cache(torch.tensor([tokens]))
        self.logits = array(logits)[0]  # (position, d_vocab_out)
        unit = torch.finfo(torch.float32 if single else logits.dtype).eps
        self.off = float(unit) / float(np.finfo(np.float64).eps)
        self.off *= within(self.ours.checkpoint, len(tokens))

    def cached(self, name: str) -> Array:
        """Give what is cached under a name, of the one prompt."""
        return array(self.cache[name])[0]

    def close(self, ours: Array, theirs: Array) -> None:
        assert ours.shape == theirs.shape
        size = max(float(abs(theirs).max()), 1e-3)
        assert float(abs(ours - theirs).max()) <= self.off * size

    def check_dense(self) -> None:
        """Compare logits, patterns and the stream in front of every layer and behind the last."""
        config, dense = self.ours.config, self.run.dense
        ours = np.stack([self.run.logits(place) for place in range(len(self.tokens))])
        self.close(capped(config, ours), self.logits)
        for layer in range(config.n_layers):
            at = f"blocks.{layer}"
            self.close(self.run.patterns[layer], self.cached(f"{at}.attn.hook_pattern"))
            self.close(dense.residual[layer][0], self.cached(f"{at}.hook_resid_pre"))
        if config.n_layers:
            self.close(dense.residual[-1][0], self.cached(f"{at}.hook_resid_post"))

    def parts(self) -> dict[str, Array]:
        """Give `decompose_resid` by our names of sources: each (position, d_model)."""
        found, labels = self.cache.decompose_resid(return_labels=True)
        return {
            label: array(part)[0] for label, part in zip(map(our_label, labels), found, strict=True)
        }

    def check_parts(self) -> None:
        """Compare what each part of a layer wrote."""
        sources = {source.label: source.values for source in self.run.frozen.sources}
        parts = self.parts()
        for layer, trace in enumerate(self.run.dense.layers):
            self.close(trace.attn_out[0], parts.pop(f"L{layer}attn"))
            if trace.mlp_out is not None:
                self.close(trace.mlp_out[0], parts.pop(f"L{layer}M"))
        if self.ours.config.positional_embedding_type == "shortformer":
            del parts["pos"]  # they are no part of the stream
        for label, part in parts.items():
            self.close(sources[label], part)

    def attributions(self, stack: Any, target: int) -> Array:
        """Give what TransformerLens attributes to parts of the last stream: (part,)."""
        tokens = self.torch.tensor([target])
        found = self.cache.logit_attrs(stack, tokens=tokens, pos_slice=-1, has_batch_dim=True)
        return array(found)[:, 0]

    def check_sources(self, target: int) -> None:
        """Compare paths through no head with the direct attributions of what wrote them."""
        found, labels = self.cache.decompose_resid(return_labels=True, pos_slice=-1)
        known = {source.label for source in self.run.frozen.sources}
        for label, value in zip(
            map(our_label, labels), self.attributions(found, target), strict=True
        ):
            if label in known:
                self.close(np.array(self.run.value(label, target, centred=False)), value)

    def check_heads(self, target: int) -> None:
        """Compare all paths that end in each head with what the head is attributed."""
        found = self.cache.stack_head_results(pos_slice=-1)
        config = self.ours.config
        ours = [
            float(self.run.total(f"* > L{layer}H{head}", target=target, centred=False).sum())
            for layer in range(config.n_layers)
            for head in range(config.n_heads)
        ]
        self.close(np.array(ours), self.attributions(found, target)[: len(ours)])

    def check_rows(self, target: int) -> None:
        """Compare all rows of a table of paths through one head with theirs, norms held fixed."""
        table = self.run.paths(target, top=10**6, max_order=1, centred=False)
        rows = {row.path: row.value for row in table if row.order == 1}
        parts, checked = self.parts(), 0
        scale = max(abs(value) for value in rows.values())
        for layer in range(self.ours.config.n_layers):
            for label, part in parts.items():
                for head, stack in enumerate(self.through_heads(part, layer)):
                    path = f"{label} > L{layer}H{head}"
                    if path not in rows:  # born later, or it is what attention wrote
                        continue
                    value = self.attributions(stack[None, None, -1:], target)[0]
                    assert abs(value - rows[path]) <= self.off * max(scale, 1e-3)
                    checked += 1
        biases = {source.label for source in self.run.frozen.sources} - set(parts)
        assert checked == sum(path.split(" ")[0] not in biases for path in rows)

    def through_heads(self, part: Array, layer: int) -> Any:
        """Take a part of the stream through each head, all held fixed: (head, position, d_model).

        Patterns, scales and weights are theirs.
        """
        torch, block = self.torch, self.theirs.blocks[layer]
        stream = torch.from_numpy(part)
        if not self.is_rms():
            stream = stream - stream.mean(-1, keepdim=True)
        scale = self.double(f"blocks.{layer}.ln1.hook_scale")
        stream = stream / scale.reshape(len(scale), -1)[:, :1]  # split inputs have one a head
        W_V, W_O = (each.detach().double() for each in (block.attn.W_V, block.attn.W_O))
        W_V = W_V.repeat_interleave(len(W_O) // len(W_V), dim=0)
        pattern = self.double(f"blocks.{layer}.attn.hook_pattern")
        through = torch.einsum("hqk,km,hmd,hdn->hqn", pattern, stream, W_V, W_O)
        return through.to(self.cache[f"blocks.{layer}.hook_resid_pre"].dtype)

    def is_rms(self) -> bool:
        return self.run.model.weights.blocks[0].ln1.kind == "rms"

    def double(self, name: str) -> Any:
        return self.cache[name][0].detach().double()

    def check_closure(self, target: int) -> None:
        """Close tables in all three modes on the logit they give."""
        logit = np.array(self.run.logits()[target])
        for mlp in MLP_MODES:
            table = self.ours.with_mlp(mlp).run(self.tokens).paths(target, top=5, centred=False)
            assert table.certified
            assert abs(table.gap) <= table.gap_bound < 1e-8
            self.close(np.array(table.listed + table.remainder), logit)


def array(tensor: Any) -> Array:
    """Give a tensor as float64."""
    found: Array = tensor.detach().double().cpu().numpy()
    return found


def our_label(label: str) -> str:
    """Give our name of a part: `0_mlp_out` is `L0M`, `pos_embed` is `pos`.

    >>> our_label("0_mlp_out"), our_label("1_attn_out"), our_label("embed")
    ('L0M', 'L1attn', 'embed')
    """
    layer, _, part = label.partition("_")
    if layer.isdigit():
        return f"L{layer}" + {"mlp_out": "M", "attn_out": "attn"}[part]
    return {"pos_embed": "pos"}.get(label, label)
