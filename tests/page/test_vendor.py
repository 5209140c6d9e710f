"""The files of other projects are those that were published, and come with their licences."""

from __future__ import annotations

import hashlib

from gmi_drl.report.vendor import uplot


def test_uplot_is_as_its_checksums_say() -> None:
    folder = uplot.SCRIPT.parent
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {uplot.SCRIPT.name, uplot.STYLE.name, "LICENSE"}
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_uplot_is_the_version_that_it_says_and_free_to_use() -> None:
    head = uplot.SCRIPT.read_text(encoding="utf-8")[:200]
    assert f"(v{uplot.VERSION})" in head
    assert "MIT License" in (uplot.SCRIPT.parent / "LICENSE").read_text(encoding="utf-8")
