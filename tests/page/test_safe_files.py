"""No file is opened that leads out of its folder."""

import os
import threading

import pytest

from gmi_drl.page.safe_files import OutsideFolder, id_of, open_inside, read_inside


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "gmi0.log").write_text("secret")
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "a").write_text("ours")
    return tmp_path / "run"


def test_a_file_of_the_folder_is_read(run):
    assert read_inside(run, "a") == b"ours"
    os.symlink("a", run / "b")  # within the folder a link is a file
    assert read_inside(run, "b") == b"ours"


@pytest.mark.parametrize("to", ["../secret", "/etc/hostname", "../run/../secret"])
def test_a_link_that_leads_out_is_refused(run, to):
    os.symlink(to, run / "run.json")
    with pytest.raises(OutsideFolder, match="leads out"):
        read_inside(run, "run.json")


def test_a_folder_that_is_a_link_is_refused(run):
    os.rmdir(run / "logs")
    os.symlink("../other", run / "logs")
    with pytest.raises(OutsideFolder, match="leads out"), open_inside(run, "logs", "gmi0.log"):
        pass


def test_a_folder_of_a_like_name_is_another(run, tmp_path):
    (tmp_path / "run2").mkdir()
    (tmp_path / "run2" / "x").write_text("secret")
    os.symlink("../run2/x", run / "x")
    with pytest.raises(OutsideFolder):
        read_inside(run, "x")


def test_the_folder_itself_may_be_reached_by_a_link(run, tmp_path):
    os.symlink(run, tmp_path / "link")
    assert read_inside(tmp_path / "link", "a") == b"ours"


def test_a_pipe_is_refused_and_not_waited_for(run):
    os.mkfifo(run / "pipe")
    done = threading.Event()

    def read():
        with pytest.raises(OutsideFolder, match="no plain file"):
            read_inside(run, "pipe")
        done.set()

    threading.Thread(target=read, daemon=True).start()
    assert done.wait(10)


@pytest.mark.parametrize("name", ["logs", "/dev/null", "."])
def test_what_is_no_file_is_refused(run, name):
    with pytest.raises(OSError):  # noqa: PT011
        read_inside(run, name)


def test_a_path_that_leads_out_is_refused(run):
    with pytest.raises(OutsideFolder):
        read_inside(run, "..", "secret")


def test_a_file_larger_than_any_of_ours_is_not_read(run):
    with open(run / "large", "wb") as file:
        file.truncate(2**33)
    with pytest.raises(OutsideFolder, match="larger than"):
        read_inside(run, "large")


def test_descriptors_are_given_back(run):
    os.symlink("/etc/hostname", run / "out")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a", "out") * 20:
        try:
            read_inside(run, name)
        except OSError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_id_is_no_path(run):
    id = id_of(run)
    assert id == id_of(run) != id_of(run / "a")
    assert set(id) <= set("0123456789abcdef")
    assert len(id) == 16
