"""The explorer: one page that follows a target's paths from the logits to the tokens.

contents   what the page holds, as plain data
explorer   the whole page, its views linked with each other (explorer.js, query.js)
claims     what stands on top: the sum that closes, and what is certified
path_view  the table of paths, its filters, and the drawing of the selected ones
colours    blue adds, orange takes away
order_view sums over all paths of each order, as steps to the dense value
head_view  where a head looks, and why
"""

from pathexpand.report.contents import HeadPart, Moves, Pattern, Report

__all__ = ["HeadPart", "Moves", "Pattern", "Report"]
