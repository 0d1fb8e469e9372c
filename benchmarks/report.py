"""Time the explorer against the page people make of a table: pandas' `to_html`.

    python benchmarks/report.py [MODEL] [PROMPT] [TOP]

Both hold the same ranked paths, of `two-layer` or of the model that is given, neuron by neuron. In
one run: seconds from the ranked table to the file; bytes; and in a headless Chromium, opened from
disk, milliseconds until the page is drawn and until a filter by head has taken effect (of the plain
page by hiding rows). The explorer also draws, says why heads look where they do, and so on.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pathexpand

PROMPT = "Humpty Dumpty sat on a wall. Humpty D"
READY = (
    "const done = arguments[0], wait = () => {const doc = window.Bokeh?.documents?.[0];"
    "if (doc && !doc.is_idle) return setTimeout(wait, 5);"
    "requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));}; wait();"
)
FILTERS = {
    "pandas to_html": (
        "const start = performance.now(), done = arguments[1];"
        "for (const row of document.querySelectorAll('tbody tr'))"
        "  row.style.display = row.textContent.includes(arguments[0]) ? '' : 'none';"
        "requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"
    ),
    "explorer": (
        "const start = performance.now(), done = arguments[1];"
        "Bokeh.documents[0].get_model_by_name('head').value = arguments[0];"
        "requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"
    ),
}


def browser() -> Any:
    """Open a headless Chromium, or give None where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def line(values: list[float]) -> str:
    widths = (10, 8, 11, 12)[: len(values)]
    return "".join(f"{each:{width}.2f}" for each, width in zip(values, widths, strict=True))


def main() -> None:
    given = sys.argv[1:]
    name, prompt = given[0] if given else "two-layer", given[1] if len(given) > 1 else PROMPT
    top = int(given[2]) if len(given) > 2 else 10_000
    run = pathexpand.load(name, mlp="neurons").run(prompt)
    start = time.perf_counter()
    table = run.paths(top=top)
    print(f"{name}: {len(table):,} paths ranked in {time.perf_counter() - start:.2f} s")
    place = Path(tempfile.mkdtemp())
    figures: dict[str, list[float]] = {}
    for kind in FILTERS:
        file = place / f"{kind.split()[0]}.html"
        start = time.perf_counter()
        if kind == "explorer":
            table.to_html(file)
        else:
            file.write_text(table.to_pandas().to_html(), encoding="utf-8")
        figures[kind] = [time.perf_counter() - start, file.stat().st_size / 1e6]
    driver = browser()
    label = next(row.path.split(" > ")[-1] for row in table if row.order)
    for kind, filtering in FILTERS.items() if driver is not None else ():
        opened, filtered = [], []
        for _ in range(5):
            driver.get((place / f"{kind.split()[0]}.html").as_uri())
            opened.append(driver.execute_async_script(READY))
            filtered.append(driver.execute_async_script(filtering, label))
        figures[kind] += [sorted(opened)[2], sorted(filtered)[2]]
    if driver is not None:
        driver.quit()
    print(f"{'':16}{'write, s':>10}{'MB':>8}{'drawn, ms':>11}{'filter, ms':>12}")
    for kind, values in figures.items():
        print(f"{kind:16}{line(values)}")
    plain, own = figures.values()
    print(f"{'ratio':16}{line([b / a for a, b in zip(plain, own, strict=True)])}")
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
