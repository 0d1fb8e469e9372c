"""Path tables: what a ranking says, and every form it is shown or saved in."""

from pathexpand.table.path_table import NormRow, NormTable, PathRow, PathTable, SourceToken

__all__ = ["NormRow", "NormTable", "PathRow", "PathTable", "SourceToken"]
