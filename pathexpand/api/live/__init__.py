"""Models that are already in memory as objects of other libraries; none of these is imported."""

from pathexpand.api.live.hugging_face import from_transformers
from pathexpand.api.live.lens import from_transformer_lens

__all__ = ["from_transformer_lens", "from_transformers"]
