"""The remedy for a package that is missing fits how gmi-drl was installed."""

import types

import pytest

from gmi_drl.placement import extras

EDITABLE = "pip install -e '.[mujoco]' in the clone"


@pytest.mark.parametrize(
    ("origin", "remedy"),
    [
        ('{"url": "file:///c", "dir_info": {"editable": true}}', EDITABLE),
        ('{"url": "file:///c", "dir_info": {}}', "pip install 'gmi-drl[mujoco]'"),
        ('{"url": "https://x/gmi_drl.whl", "archive_info": {}}', "pip install 'gmi-drl[mujoco]'"),
        (None, "pip install 'gmi-drl[mujoco]'"),  # a wheel from an index
    ],
)
def test_a_clone_and_a_wheel_are_told_apart(monkeypatch, origin, remedy):
    installed = types.SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr(extras, "distribution", lambda name: installed)
    assert extras.install("mujoco") == remedy


def test_a_clone_that_is_not_installed_is_a_clone(monkeypatch):
    def missing(name):
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.install("mujoco") == EDITABLE
