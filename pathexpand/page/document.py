"""One HTML file with all its scripts in it, which asks no network for anything."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Any

from pathexpand.errors import FileError, PathExpandError
from pathexpand.writing import whole

SUFFIXES = (".html", ".htm")
# The browser itself holds the page to its word: nothing may be fetched from anywhere. The scripts
# stand in the page, and bokeh compiles callbacks that do.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
_TEMPLATE = """\
{% block preamble %}
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="pathexpand">
{% endblock %}
{% block postamble %}
<style>
body { margin: 0 auto; padding: 0 1rem 3rem; max-width: 1400px; background: #fff; color: #111;
       font: 15px/1.45 system-ui, sans-serif; }
</style>
{% endblock %}
"""
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def check_bokeh() -> None:
    """Refuse to make a page where bokeh is not installed.

    >>> check_bokeh()
    """
    if find_spec("bokeh") is None:
        raise PathExpandError("pages", wanted="bokeh", remedy="pip install 'pathexpand[report]'")


def check_page(name: str | FilePath) -> FilePath:
    """Refuse a page that could not be written, before any work is done for it.

    Raises `FileError`, and `PathExpandError` where bokeh is not installed.

    >>> check_page("paths.pdf")
    Traceback (most recent call last):
    ...
    pathexpand.errors.FileError: paths.pdf: wanted a name that ends in .html
    """
    from pathexpand.model.shown import FILE_ROOM, cut, shown

    if not isinstance(name, str | FilePath):
        raise FileError("page", wanted="the name of a file", got=shown(name))
    file, written = FilePath(name), cut(str(name), FILE_ROOM)
    if file.suffix.lower() not in SUFFIXES:
        raise FileError(written or "page", wanted="a name that ends in .html")
    if "\0" in str(name):
        raise FileError(written, wanted="a name that a file can have")
    try:
        is_place, is_folder = file.absolute().parent.is_dir(), file.is_dir()
        file.exists()
    except OSError as error:  # a name no file can have
        raise FileError(f"{written}: cannot write: {error.strerror}") from None
    if not is_place:
        raise FileError(f"{written}: cannot write", wanted="a directory that exists")
    if is_folder:
        raise FileError(f"{written}: cannot write", wanted="a file", got="a directory")
    check_bokeh()
    return file


def document(root: Any, *, title: str, ready: Any = None) -> str:
    """Write a bokeh layout as a page; `ready` is a callback for when it is drawn.

    >>> from bokeh.models import Div
    >>> page = document(Div(text="all paths"), title="</title><script>")
    >>> page.count("</title>"), "<script src" in page
    (1, False)
    """
    check_bokeh()
    from bokeh.document import Document
    from bokeh.embed import file_html
    from bokeh.resources import Resources

    made = Document()
    made.add_root(root)
    if ready is not None:
        made.js_on_event("document_ready", ready)
    page: str = file_html(
        made,
        Resources(mode="inline", log_level="warn"),
        title=title,
        template=_TEMPLATE,
        template_variables={"policy": _POLICY},
    )
    # bokeh draws its identifiers by chance; the same layout shall be the same file.
    names = {each: f"id-{n}" for n, each in enumerate(dict.fromkeys(_ID.findall(page)))}
    return _ID.sub(lambda found: names[found[0]], page)


def save(page: str, file: str | FilePath) -> None:
    """Write a page, whole or not at all; raises `FileError`."""
    target = check_page(file)
    with whole(target) as stream:
        stream.write(page.encode("utf-8"))
