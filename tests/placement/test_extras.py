"""The remedy for a package that is missing fits how gmi-drl was installed."""

from gmi_drl.placement import faults


def copy_of(folder):
    """Lay out `folder` as the package is, and return its `placement/faults.py`."""
    source = folder / "placement" / "faults.py"
    source.parent.mkdir(parents=True)
    source.touch()
    return source


def test_a_clone_installs_by_its_path(tmp_path):
    source = copy_of(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert faults.install("mujoco", source) == "pip install -e '.[mujoco]' in the clone"


def test_the_links_of_a_clone_are_followed(tmp_path):
    copy_of(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    package = tmp_path / "src" / "gmi_drl"
    package.mkdir(parents=True)
    (package / "placement").symlink_to("../../placement")
    linked = package / "placement" / "faults.py"
    assert faults.install("mjx", linked) == "pip install -e '.[mjx]' in the clone"


def test_a_wheel_installs_by_name(tmp_path):
    source = copy_of(tmp_path / "site-packages" / "gmi_drl")
    assert faults.install("mujoco", source) == "pip install 'gmi-drl[mujoco]'"


def test_this_checkout_is_a_clone():
    assert faults.install("lz4") == "pip install -e '.[lz4]' in the clone"
