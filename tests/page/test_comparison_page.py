"""The page of `gmi-drl compare` in a real browser: it draws, and its console stays clean."""

from __future__ import annotations

import os
import shutil

import pytest

from compared_runs import make_run
from gmi_drl.report.comparison.groups import Comparison
from gmi_drl.report.comparison.page import comparison_page

api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")

# Pixels of a canvas that are of the first group's colour, solid.
INKED = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    if (Math.abs(data[i] - 47) + Math.abs(data[i + 1] - 126) + Math.abs(data[i + 2] - 216) < 12
        && data[i + 3] > 200) count += 1;
  return count;
}"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("width", [400, 1600])
def test_both_charts_are_drawn_and_nothing_is_complained_of(tmp_path, width):
    for seed in (0, 1, 2):
        make_run(tmp_path, seed, slope=seed + 1)
    hostile = {"run": {"name": "</script><script>document.title = 'taken'</script>"}}
    make_run(tmp_path, 5, name="b", slope=0.5, config=hostile)
    file = tmp_path / "page.html"
    file.write_text(comparison_page(Comparison.of([tmp_path])))
    complaints = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu"],
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},  # it leaves folders there
        )
        page = browser.new_page(viewport={"width": width, "height": 900}, offline=True)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(file.as_uri())
        inked = {}
        for axis in ("steps", "time_s"):
            canvas = page.locator(f"#chart-{axis} canvas")
            inked[axis] = canvas.evaluate(INKED)
            box = canvas.bounding_box()
            page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2)
            assert "ant: " in page.locator(f"#values-{axis}").text_content()
        page.check("#seeds")
        page.locator("#groups button").first.click()
        hidden = page.locator("#chart-steps canvas").evaluate(INKED)
        overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        title = page.title()
        browser.close()
    assert all(count > 200 for count in inked.values()), inked
    assert hidden == 0
    assert overflow <= 0
    assert title.startswith("ant")
    assert complaints == []
