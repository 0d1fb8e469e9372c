"""Pages opened from disk in a real browser without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_FIND = "const at = (name) => Bokeh.documents[0].get_model_by_name(name);\n"


class Opened:
    """A page in the browser: its models by name, what it says, and what it asked for."""

    def __init__(self, browser: Any, page: str, file: Path, address: str = "") -> None:
        file.write_text(page, encoding="utf-8")
        self.browser, self.file = browser, file
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what pages before have said
        self.visit(address)

    def visit(self, address: str = "") -> None:
        """Open the file anew with something in its address."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.file.as_uri()}{address}")
        self.wait("document.readyState === 'complete' && Bokeh.documents.length === 1")
        self.browser.execute_async_script(
            "const done = arguments[0], doc = Bokeh.documents[0];"
            "if (doc.is_idle) done(); else doc.idle.connect(() => done());"
        )

    def wait(self, condition: str) -> None:
        """Wait until a condition of the page holds."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 30).until(
            lambda driver: driver.execute_script(f"return {condition}")
        )

    def run(self, code: str, *given: Any) -> Any:
        """Run a script in which `at(name)` gives a model."""
        return self.browser.execute_script(_FIND + code, *given)

    def set(self, name: str, value: object) -> None:
        """Choose a value, as the page's own field does."""
        self.run("at(arguments[0]).value = arguments[1];", name, value)

    def text(self, name: str) -> str:
        """Give the words of a block of text, as a reader sees them."""
        found: str = self.run(
            "const box = document.createElement('div'); box.innerHTML = at(arguments[0]).text;"
            "return [...box.querySelectorAll('td, dd, dt, p')].map((each) => each.textContent)"
            ".join(' | ') || box.textContent;",
            name,
        )
        return " ".join(found.split())

    def click(self, name: str) -> None:
        """Press a button."""
        self.run("Bokeh.index.find_one_by_id(at(arguments[0]).id).button_el.click();", name)

    def select(self, *rows: int) -> None:
        """Select rows of the paths, from 0."""
        self.run("at('paths').source.selected.indices = arguments[0];", list(rows))

    @property
    def shown(self) -> list[int]:
        """The rows that the filters leave."""
        return list(self.run("return Array.from(at('paths').view.filter.indices);"))

    def said(self) -> list[str]:
        """Give what the page logged, but for bokeh naming its version."""
        entries = self.browser.get_log("browser")
        return [each["message"] for each in entries if each["level"] != "INFO"]

    def asked(self) -> list[str]:
        """Give what the page asked for, itself and inline data apart."""
        found = []
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                params = message["params"]
                found.append(params.get("url") or params["request"]["url"])
        own = self.file.as_uri()
        inline = ("data:", "about:", f"{own}#")
        return [url for url in found if url != own and not url.startswith(inline)]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[..., Opened]:
    """Open a page of HTML from a file of its own."""

    def open_page(page: str, address: str = "") -> Opened:
        return Opened(browser, page, tmp_path / "page.html", address)

    return open_page
