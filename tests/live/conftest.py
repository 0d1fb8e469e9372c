"""These tests need torch, transformers and TransformerLens, which nothing else here does.

Where they are not installed, what needs them is skipped; `.ci/run` has an environment for them.
"""

import warnings
from importlib.metadata import PackageNotFoundError, version

import pytest

# Other people's warnings are no errors of ours, neither while they are imported nor later.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import torch  # noqa: F401
        import transformer_lens  # noqa: F401
        import transformers
    except ImportError:
        pass
    else:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()


def major(package: str) -> int | None:
    """Give the first number of an installed package's version."""
    try:
        return int(version(package).partition(".")[0])
    except PackageNotFoundError:
        return None


# TransformerLens 4 has no HookedTransformer any more; bridges came with 3, those of its own with 4.
LENS = major("transformer_lens")
collect_ignore = []
if LENS is not None:
    collect_ignore += ["test_hooked_transformer.py"] if LENS >= 4 else ["test_native_bridge.py"]
    collect_ignore += ["test_bridge.py"] if LENS < 3 else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "live":
            # The last mark that is added is looked at first.
            item.add_marker(pytest.mark.filterwarnings("error:::pathexpand"))
            item.add_marker(pytest.mark.filterwarnings("ignore"), append=False)
