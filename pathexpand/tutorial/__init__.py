"""The tutorial: the paper's circuits, question by question, on the embedded models."""

from importlib.resources import files


def page() -> str:
    """Give the tutorial's page on circuits, in Markdown.

    >>> page().splitlines()[0]
    '# Circuits, question by question'
    """
    return files(__name__).joinpath("circuits.md").read_text(encoding="utf-8")
