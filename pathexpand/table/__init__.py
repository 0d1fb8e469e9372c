"""Path tables: what a ranking says, and every form it is shown or saved in."""

from pathexpand.table.abstract import Table
from pathexpand.table.dataset_table import DatasetRow, DatasetTable
from pathexpand.table.norm_table import NormRow, NormTable
from pathexpand.table.path_table import PathRow, PathTable, SourceToken
from pathexpand.table.totals_table import TotalsRow, TotalsTable

__all__ = [
    "DatasetRow",
    "DatasetTable",
    "NormRow",
    "NormTable",
    "PathRow",
    "PathTable",
    "SourceToken",
    "Table",
    "TotalsRow",
    "TotalsTable",
]
