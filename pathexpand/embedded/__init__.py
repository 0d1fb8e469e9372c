"""The attention-only models that come with the package, as files."""
