"""What every test can rely on: the folder of trained models that others made, or a clear skip."""

import os
from pathlib import Path

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
    if item.get_closest_marker("shared_models") is None or SHARED_MODELS.is_dir():
        return
    message = f"needs the trained models in {SHARED_MODELS}"
    if os.environ.get("PATHEXPAND_SHARED_REQUIRED"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def shared_models() -> Path:
    return SHARED_MODELS
