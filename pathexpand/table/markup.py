"""A table as Markdown, LaTeX or HTML, with every token written letter by letter."""

from __future__ import annotations

import html as html_module
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pathexpand.table.sheet import Line, Sheet

_PROMPT_ROOM = 400  # letters of a prompt that are shown over a table

# Notebooks look for formulas in whatever is shown; a dollar in a token starts none.
_CLASSES = "pathexpand tex2jax_ignore mathjax_ignore"
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    # In braces, so that two of them do not become one longer sign.
    '"': '{"}',
    "-": "{-}",
    # TeX runs plain spaces together.
    " ": "\\ ",
} | {sign: f"\\{sign}" for sign in "&%$#_"}


def markdown(sheet: Sheet) -> str:
    """Write a sheet as a Markdown table between its head and its claims.

    >>> from pathexpand.table.sheet import Column
    >>> print(markdown(Sheet((), (Column("token", ("'|'",), literal=True),), (), (), True)))
    | token   |
    |:--------|
    | `'\\|'` |
    """
    head = [f"- {line.label}: {_markdown_code(line.within(_PROMPT_ROOM))}" for line in sheet.head]
    body = _tabulated(sheet, "pipe", _markdown_literal, _same)
    sums = "\n".join(f"- {line}" for line in _closing_lines(sheet))
    parts = ("\n".join(head), body, sums, "\n\n".join(sheet.claims))
    return "\n\n".join(part for part in parts if part)


def latex(sheet: Sheet) -> str:
    r"""Write a sheet as a LaTeX tabular; the head and the claims are comments.

    >>> from pathexpand.table.sheet import Column
    >>> print(latex(Sheet((), (Column("token", ("'a  b'",), literal=True),), (), (), True)))
    \begin{tabular}{l}
    \hline
     token \\
    \hline
     \texttt{\textquotesingle{}a\ \ b\textquotesingle{}} \\
    \hline
    \end{tabular}
    """
    head = [f"% {line.label}: {line.within(_PROMPT_ROOM)}" for line in sheet.head]
    body = _tabulated(sheet, "latex_raw", _latex_literal, _latex_plain)
    below = (*_closing_lines(sheet), *sheet.claims)
    return "\n".join([*head, body, *(f"% {line}" for line in below)])


def html(sheet: Sheet) -> str:
    """Write a sheet as HTML in which nothing from a model or a prompt is markup.

    >>> from pathexpand.table.sheet import Column
    >>> html(Sheet((), (Column("token", ("'<b>'",), literal=True),), (), (), True)).count("<b>")
    0
    """
    label = "font-weight: bold; padding-right: 1em"
    head = "".join(
        f'<div><span style="{label}">{html_module.escape(line.label)}</span>'
        f"{html_module.escape(line.within(_PROMPT_ROOM))}</div>"
        for line in sheet.head
    )
    # The html format of tabulate escapes every cell itself.
    rows = replace(sheet, closing=())
    body = _cells_styled(_tabulated(rows, "html", _same, _same)) if sheet.columns else ""
    claims = "".join(f"<div>{html_module.escape(line)}</div>" for line in sheet.claims)
    inner = f"{head}{body}{_closing_table(sheet)}{claims}"
    return f'<div class="{_CLASSES}" style="white-space: pre-wrap">{inner}</div>'


def _closing_table(sheet: Sheet) -> str:
    """Write the closing lines as a table of their own, since they sum up no one column."""
    if not sheet.closing:
        return ""
    rows = [[line.label, line.number, line.share, line.remark] for line in sheet.closing]
    from tabulate import tabulate

    aligns = ("left", "right", "right", "left")
    return _cells_styled(tabulate(rows, tablefmt="html", colalign=aligns, disable_numparse=True))


def card(lines: Sequence[Line], *claims: str) -> str:
    """Write labelled lines as HTML, with what is to be said below: a notebook's view of an object.

    >>> from pathexpand.table.sheet import Line
    >>> "<b>" in card([Line("token", "<b>")])
    False
    """
    return html(Sheet(tuple(lines), (), (), claims, True))


def _cells_styled(table: str) -> str:
    """Keep the spaces of tokens and drop those that pad; notebooks have cell styles of their own.

    Cells are escaped, so whatever looks like a tag is one.
    """
    table = re.sub(r"(<t[hd][^>]*>) +", r"\1", re.sub(r" +(</t[hd]>)", r"\1", table))
    table = re.sub(r"<(t[hd])>", r'<\1 style="text-align: left;">', table)
    table = re.sub(r'<(t[hd]) style="', r'<\1 style="white-space: pre; ', table)
    return table.replace("\n", "")


def _tabulated(
    sheet: Sheet, style: str, literal: Callable[[str], str], plain: Callable[[str], str]
) -> str:
    from tabulate import tabulate

    writers = [literal if column.literal else plain for column in sheet.columns]
    rows = [[write(cell) for write, cell in zip(writers, row, strict=True)] for row in sheet.rows]
    return str(
        tabulate(
            [*rows, *([plain(cell) for cell in row] for row in _closing_rows(sheet))],
            headers=[column.name for column in sheet.columns],
            tablefmt=style,
            colalign=["right" if column.right else "left" for column in sheet.columns],
            disable_numparse=True,
        )
    )


def _closing_rows(sheet: Sheet) -> Iterator[list[str]]:
    """Yield the closing lines as rows: each part under the column it belongs to."""
    label = _label_column(sheet)
    for line in sheet.closing if label is not None else ():
        parts = {label: f"({line.label})", "value": line.number, "share": line.share}
        parts[sheet.columns[-1].name] = line.remark
        yield [parts.get(column.name, "") for column in sheet.columns]


def _label_column(sheet: Sheet) -> str | None:
    """Give the column of paths, where the closing lines sum up what stands beside it."""
    names = [column.name for column in sheet.columns]
    if "value" not in names:
        return None
    return next((name for name in names if name.endswith("path")), None)


def _closing_lines(sheet: Sheet) -> Iterator[str]:
    """Yield the closing lines as texts, where they fit under no column."""
    for line in sheet.closing if _label_column(sheet) is None else ():
        yield " ".join(part for part in (line.label, line.number, line.share, line.remark) if part)


def _markdown_literal(text: str) -> str:
    return _markdown_code(text).replace("|", r"\|") if text else ""


def _markdown_code(text: str) -> str:
    fence = "`"
    while fence in text:
        fence += "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _latex_literal(text: str) -> str:
    written = "".join(_LATEX.get(letter, letter) for letter in text)
    return rf"\texttt{{{written}}}" if text else ""


def _latex_plain(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%$#_" else letter for letter in text)


def _same(text: str) -> str:
    return text
