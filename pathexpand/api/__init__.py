"""What people call: a model, a run of it on a prompt, and the tables of their paths."""

from pathexpand.api.model import Model, from_state_dict, load
from pathexpand.api.run import TOTALS, Run, SearchedPaths

__all__ = ["TOTALS", "Model", "Run", "SearchedPaths", "from_state_dict", "load"]
