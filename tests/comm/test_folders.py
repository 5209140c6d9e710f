"""The folders of comm/ form a line: each imports only those before it, at any depth of a file."""

import ast
from pathlib import Path

import pytest

COMM = Path(__file__).resolve().parents[2] / "comm"
LINE = (
    "shm", "group", "mailbox", "transports", "hosts", "links", "reducers", "plan", "experience",
)  # fmt: skip


def imported(path):
    """The folders of comm/ that a file names in any import, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            package = list(path.relative_to(COMM.parent).parts[:-1])
            above = package[: len(package) - node.level + 1] if node.level else ["gmi_drl"]
            parts = [*above, *(node.module or "").split(".")]
            names = [[*parts, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("gmi_drl.comm."):
            names = [node.value.split(".")]
        else:
            continue
        for parts in names:
            parts = [part for part in parts if part != "gmi_drl"]
            if parts[0] == "comm" and len(parts) > 1 and parts[1] in LINE:
                yield node.lineno, parts[1]


def test_the_line_has_every_folder():
    folders = {path.parent.name for path in COMM.glob("*/*.py")}
    assert folders == set(LINE)


@pytest.mark.parametrize("folder", LINE)
def test_a_folder_imports_only_those_before_it(folder):
    allowed = LINE[: LINE.index(folder) + 1]
    for path in sorted((COMM / folder).rglob("*.py")):
        for line, name in imported(path):
            assert name in allowed, f"{path}:{line} imports {name}"
