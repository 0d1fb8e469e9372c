"""The script that writes the reference needs torch and TransformerLens; the tests do not."""

collect_ignore = ["make_transformer_lens.py"]
