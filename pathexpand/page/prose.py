"""Texts on a page: our own markup, and everything else letter by letter."""

from __future__ import annotations

import html
from typing import Any

STYLE = """
:host { font: 14px/1.45 system-ui, sans-serif; color: #111; }
h1 { font-size: 1.35rem; margin: .6rem 0 .2rem; }
h2 { font-size: 1.1rem; margin: .9rem 0 .2rem; }
p { margin: .25rem 0; }
code, .mono { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; margin: .3rem 0; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .3rem 0; }
th, td { text-align: left; padding: .1rem .9rem .1rem 0; vertical-align: top; }
th { border-bottom: 1px solid #888; font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { color: #006644; } .bad { color: #a33a00; font-weight: 600; }
.plus { color: #0072b2; } .minus { color: #b84a00; } .quiet { color: #555; }
.bar { display: inline-block; height: .6rem; background: #0072b2; vertical-align: middle; }
.bar.minus { background: repeating-linear-gradient(45deg, #d55e00 0 3px, #fff 3px 5px); }
"""


def escaped(text: object) -> str:
    """Write a text so that nothing in it is markup.

    >>> escaped("</script><b>")
    '&lt;/script&gt;&lt;b&gt;'
    """
    return html.escape(str(text))


def prose(markup: str = "", **options: Any) -> Any:
    """Make a block of text out of markup, in which texts from elsewhere are `escaped`.

    No formula is looked for in it: a token may hold dollars.

    >>> prose("<p>all</p>").disable_math
    True
    """
    from bokeh.models import Div

    # A long text must break rather than push its neighbours out.
    options = {"sizing_mode": "stretch_width", "stylesheets": [STYLE]} | options
    return Div(text=markup, disable_math=True, **options)
