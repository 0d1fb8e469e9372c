"""A symbolic path-expansion engine for transformers."""
