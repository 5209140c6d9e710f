"""`gmi-drl launch` in a terminal: Ctrl-C, what is told of it, and how to go on."""

import re

import pytest

from terminals import Terminal

CONFIG = """\
version: 1
run: {name: pole, total_steps: 50_000_000, folder: %s}
env: {id: CartPole-v1, num_env: 8}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_is_told_on_a_line_of_its_own_and_then_how_to_go_on(tmp_path):
    config = tmp_path / "pole.yaml"
    config.write_text(CONFIG % (tmp_path / "runs"))
    columns = 60
    terminal = Terminal(columns, "launch", str(config))
    try:
        terminal.until(b"ETA")
        terminal.press_ctrl_c()
        terminal.until(None)
        assert terminal.process.wait(timeout=60) == 130
    finally:
        terminal.close()
    lines = terminal.lines()
    (place,) = (i for i, line in enumerate(lines) if "stopping after this iteration" in line)
    assert lines[place].startswith("warning: stopping")
    told = " ".join(" ".join(lines[place : place + 2]).split())
    assert re.search(r"in \d+ s at the latest; once more stops at once", told), told
    (folder,) = (tmp_path / "runs" / "pole").iterdir()
    assert f"folder: {folder}" in lines
    assert lines[-2:] == [f"to go on: gmi-drl launch --resume {folder}", ""]
    drawn = [line for line in lines if line[:1] in "┃│┏┡└" and line]
    assert drawn
    assert all(len(line) <= columns and "…" not in line for line in drawn)
