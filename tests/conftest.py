"""What every test can rely on: the folder of trained models that others made, or a clear skip."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Tests run on all cores at once, so none of them may take several for its small products. This
# must be said before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# Time on a shared machine proves nothing, so no example has a deadline.
settings.register_profile("pathexpand", deadline=None)
settings.load_profile("pathexpand")

SHARED_MODELS = Path(__file__).parents[1].parent / "shared" / "models"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "shared_models: needs the trained models in ../shared/models"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("shared_models") is not None and not SHARED_MODELS.is_dir():
        lacks(f"the trained models in {SHARED_MODELS}", "PATHEXPAND_SHARED_REQUIRED")


def lacks(what: str, required: str) -> None:
    """Skip a test for want of something, or fail it where that must be there."""
    if os.environ.get(required):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Give a Chromium without a network, that keeps what pages log and ask for."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        lacks("chromium and chromedriver", "PATHEXPAND_BROWSER_REQUIRED")
        return
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",  # as root there is none
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--window-size=1280,1600",
        "--force-color-profile=srgb",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    found.set_script_timeout(60)
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="session")
def shared_models() -> Path:
    return SHARED_MODELS
