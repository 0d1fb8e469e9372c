"""The tutorial: notebooks on the framework, their exercises checked.

`pathexpand tutorial DIRECTORY` copies them out.
"""

from __future__ import annotations

from pathexpand.tutorial.notebook import Notebook, copy_out, notebooks
from pathexpand.tutorial.verdict import Verdict, check

__all__ = ["Notebook", "Verdict", "check", "copy_out", "notebooks"]
