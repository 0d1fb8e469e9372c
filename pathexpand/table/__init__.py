"""Path tables: what a ranking says, and every form it is shown or saved in."""

from pathexpand.table.abstract import Table, Tabled
from pathexpand.table.analysis_table import AnalysisTable, Field, Summary
from pathexpand.table.dataset_table import DatasetRow, DatasetTable
from pathexpand.table.norm_table import NormRow, NormTable
from pathexpand.table.path_table import PathRow, PathTable, SourceToken
from pathexpand.table.score_table import CompositionSum, ScoreRow, ScoreTable
from pathexpand.table.totals_table import TotalsRow, TotalsTable

__all__ = [
    "AnalysisTable",
    "CompositionSum",
    "DatasetRow",
    "DatasetTable",
    "Field",
    "NormRow",
    "NormTable",
    "PathRow",
    "PathTable",
    "ScoreRow",
    "ScoreTable",
    "SourceToken",
    "Summary",
    "Table",
    "Tabled",
    "TotalsRow",
    "TotalsTable",
]
