"""The tutorial: notebooks on the framework, their exercises checked.

`pathexpand tutorial DIRECTORY` copies them out.
"""

from __future__ import annotations

from pathexpand.tutorial.check import Verdict, check
from pathexpand.tutorial.notebooks import Notebook, copy_out, notebooks

__all__ = ["Notebook", "Verdict", "check", "copy_out", "notebooks"]
