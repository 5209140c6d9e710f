"""The documentation builds as a site, without a link that leads nowhere, and fetches nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "site"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    api = (site / "docs" / "api" / "index.html").read_text()
    for name in ("launch", "load_policy", "DRL_role", "evaluate"):
        assert f'id="gmi_drl.{name}"' in api
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text()
        )
        assert not [url for url in fetched if "gmi" not in url], (page, fetched)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    listed = set(re.findall(r"docs/([a-z-]+)\.md", (ROOT / "mkdocs.yml").read_text()))
    assert pages | {"api"} == listed  # every page is in the navigation
