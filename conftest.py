"""Which tests run: all but the slow ones, and those for a GPU only where there is one."""

import os
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests too (so does CI=true)")


def pytest_collection_modifyitems(config, items):
    slow = config.getoption("--slow") or os.environ.get("CI") == "true"
    if not slow and not config.option.markexpr:  # `-m slow` asks for them
        unwanted = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    # Of several processes the others would wait for one that begins a long file last.
    count = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -count[item.path])
    if not Path("/dev/nvidiactl").exists():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
