"""The page in a real browser: it moves with a run, outlives it, and obeys no stranger's text."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pages
from gmi_drl.placement import Topology, tcg_ex
from gmi_drl.selector.record.search_folder import RECORD
from waits import until

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)"),
]
ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (400, 1600)
SECTIONS = ["runs", "head", "layout", "curves", "time", "log", "trials", "recorded"]  # in order
WAIT_MS = 60_000


@pytest.fixture
def browser(tmp_path):
    own = os.environ | dict.fromkeys(("XDG_RUNTIME_DIR", "XDG_CACHE_HOME"), str(tmp_path / "x"))
    (tmp_path / "x").mkdir()
    with playwright.sync_playwright() as started:
        # A container's root has no sandbox.
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], env=own)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser):
    """Opens a page that complains of whatever its console, or a request, complains of."""
    complaints = []

    def note_request(request):
        # The page itself closes its stream when another run is picked.
        if not request.url.split("?")[0].endswith("/events"):
            complaints.append(f"{request.url}: {request.failure}")

    def opened(link, width=1600):
        page = browser.new_page(viewport={"width": width, "height": 1000})
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", note_request)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(link)
        page.complaints = complaints
        return page

    return opened


def figure(page, name):
    """What stands beside a name in the head."""
    return (
        page.locator("#figures > div").filter(has=page.get_by_text(name, exact=True)).locator("b")
    )


def number(locator):
    return int(re.sub(r"\D", "", locator.inner_text().split(" of ")[0]) or 0)


def assert_readable(page, width):
    """Nothing is wider than the window, no text is too small, and all views are there in order."""
    page.set_viewport_size({"width": width, "height": 1000})
    page.wait_for_timeout(400)  # curves follow the window's width 150 ms later
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tops = []
    for id in SECTIONS:
        if id == "trials" and not page.locator("#trials").is_visible():
            continue  # where nothing was tried
        box = page.locator(f"#{id}").bounding_box()
        assert box is not None, id
        assert box["x"] >= 0, id
        assert box["x"] + box["width"] <= width, id
        tops.append(box["y"])
    assert tops == sorted(tops)
    small = page.evaluate(
        "[...document.querySelectorAll('main *')].filter((one) => one.checkVisibility()"
        " && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())"
        " && parseFloat(getComputedStyle(one).fontSize) < 12).map((one) => one.outerHTML)"
    )
    assert small == []
    charts = page.locator("#charts canvas")
    assert charts.count() >= 5
    for chart in charts.all():
        assert chart.bounding_box()["width"] >= min(220, width - 100)
    drawn = charts.first.evaluate(
        "(canvas) => canvas.toDataURL() !== Object.assign(document.createElement('canvas'),"
        " {width: canvas.width, height: canvas.height}).toDataURL()"
    )
    assert drawn


def keep(page, name, folder):
    """Writes a picture of the page; one for the documentation, too, if PAGE_PICTURES is set."""
    page.screenshot(path=folder / name, full_page=True)
    if os.environ.get("PAGE_PICTURES"):
        from PIL import Image

        picture = Image.open(folder / name).convert("RGB")
        top = picture.crop((0, 0, picture.width, min(picture.height, 1400)))
        (ROOT / "docs" / "page").mkdir(exist_ok=True)
        few = top.quantize(64)  # colours: a third of the bytes
        few.save(ROOT / "docs" / "page" / name, optimize=True)


@pytest.mark.timeout(400)
def test_the_page_moves_with_a_run_survives_its_death_and_stops_it(open_page, tmp_path):
    launched = []

    def launch(*arguments):
        command = [sys.executable, "-m", "gmi_drl", "launch", *map(str, arguments), "--quiet"]
        log = open(tmp_path / "launch.log", "ab")  # noqa: SIM115 (it outlives this function)
        launched.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
        log.close()
        return launched[-1]

    def said():
        return (tmp_path / "launch.log").read_text()

    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "runs").mkdir()
    try:
        with pages.served("--control", cwd=tmp_path, env=env) as link:
            page = open_page(link)
            assert "token" not in page.url
            expect(page.locator("#runs-note")).to_contain_text("No runs yet")
            first = launch(
                ROOT / "examples" / "cartpole.yaml",
                "--set", "run.total_steps=20_000_000", "--set", "run.checkpoint_every=5",
                "--set", "layout.gmi_per_gpu=2",
            )  # fmt: skip
            # It is found by itself, and moves.
            expect(figure(page, "state")).to_have_text("running", timeout=WAIT_MS)
            iteration = figure(page, "iteration")
            until(lambda: iteration.count() and number(iteration) >= 12, "12 iterations", 60, said)
            before = number(iteration)
            until(lambda: number(iteration) > before, "another iteration", 60)
            expect(figure(page, "time left")).to_have_text(re.compile(r"\d+:\d\d"))
            expect(page.locator("#charts .chart[data-key=return_mean] h3")).to_be_visible()
            expect(page.locator(".gmi")).to_have_count(2)
            expect(page.locator(".gmi").nth(1)).to_contain_text(re.compile(r"computes \d+ %"))
            expect(page.locator("#time-rows canvas")).to_have_count(2)
            # Its launcher is killed: the page says so, and stays.
            (folder,) = (tmp_path / "runs" / "cartpole").iterdir()
            first.kill()
            first.wait(30)
            expect(figure(page, "state")).to_have_text("failed", timeout=WAIT_MS)
            expect(page.locator("#alarms li.error")).to_contain_text("launcher was killed")
            expect(page.locator("#resume")).to_contain_text("gmi-drl launch --resume")
            died_at = number(iteration)
            # It is gone on with: the page moves again, beyond where it was.
            second = launch("--resume", folder, "--set", "run.checkpoint_every=0")
            expect(figure(page, "state")).to_have_text("running", timeout=WAIT_MS)
            until(lambda: number(iteration) > died_at + 3, "iterations of the resume", 60, said)
            page.locator("#read").click()
            expect(page.locator("#tables")).to_contain_text("gmi0.run")
            page.locator("#tables button.name").first.click()
            expect(page.locator("#lineage")).to_contain_text("gmi")
            for width in WIDTHS:
                assert_readable(page, width)
                keep(page, f"{width}.png", tmp_path)
            # It is asked for a checkpoint, and has one more then.
            saved = figure(page, "checkpoint").inner_text()
            page.locator("#save").click()
            expect(page.locator("#asked")).to_have_text(
                f"process {second.pid} was asked for a checkpoint"
            )
            expect(figure(page, "checkpoint")).not_to_have_text(saved, timeout=WAIT_MS)
            expect(figure(page, "checkpoint")).to_have_text(re.compile(r"^iteration [\d,]+$"))
            # It is asked to stop, as by Ctrl-C.
            page.locator("#stop").click()
            expect(page.locator("#asked")).to_contain_text(f"process {second.pid}")
            assert second.wait(60) == 130, said()
            expect(figure(page, "state")).to_have_text("stopped", timeout=WAIT_MS)
            assert json.loads((folder / "run.json").read_text())["state"] == "stopped"
            assert page.complaints == []
            expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#link")).to_contain_text("lost")  # the page's server has ended
    finally:
        for process in launched:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)


def test_a_run_that_is_picked_stays_and_one_that_is_gone_gives_way_to_the_newest(
    open_page, tmp_path
):
    pages.make_run(tmp_path, name="old", started=1.0)
    pages.make_run(tmp_path, name="new", started=2.0)
    with pages.served(tmp_path) as link:
        page = open_page(link)
        expect(page.locator("#run-name")).to_contain_text("new", timeout=WAIT_MS)
        expect(page.locator("#charts .chart[data-key=kl] canvas")).to_be_visible()
        page.get_by_role("button", name="old/t0").click()
        expect(page.locator("#run-name")).to_contain_text("old", timeout=WAIT_MS)
        expect(page.locator("#charts .chart[data-key=kl] canvas")).to_be_visible()
        pages.make_run(tmp_path, name="third", started=3.0)
        expect(page.locator("#runs-table")).to_contain_text("third/t0", timeout=WAIT_MS)
        expect(page.locator("#run-name")).to_contain_text("old")
        assert page.complaints == []
        page.evaluate("window.location.hash = 'run=0123456789abcdef'")
        expect(page.locator("#run-name")).to_contain_text("third", timeout=WAIT_MS)


def test_a_page_that_is_refused_tries_again_and_keeps_the_run_that_was_picked(open_page, tmp_path):
    pages.make_run(tmp_path, name="old", started=1.0)
    pages.make_run(tmp_path, name="new", started=2.0)
    with pages.served(tmp_path) as link:
        page = open_page(link)
        page.get_by_role("button", name="old/t0").click()
        expect(page.locator("#run-name")).to_contain_text("old", timeout=WAIT_MS)
        page.route(
            re.compile("/events|/state"),
            lambda route: route.fulfill(status=503, content_type="text/plain", body="no room\n"),
        )
        page.locator("#log-gmi").select_option("1")  # for which the stream is opened anew
        expect(page.locator("#link")).to_have_text("too many look on, trying again")
        page.locator("#read").click()
        expect(page.locator("#recorded-note")).to_have_text("it could not be read: no room")
        page.unroute_all()
        expect(page.locator("#log-text")).to_have_text("this is GMI 1\n", timeout=WAIT_MS)
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#run-name")).to_contain_text("old")


def test_the_log_that_is_selected_is_the_one_that_is_shown(open_page, tmp_path):
    old = pages.make_run(tmp_path, name="old", started=1.0)
    with pages.served(tmp_path) as link:
        page = open_page(link)
        shown, selected = page.locator("#log-text"), page.locator("#log-gmi")
        selected.select_option("1")
        expect(shown).to_have_text("this is GMI 1\n", timeout=WAIT_MS)
        pages.make_run(tmp_path, name="new", started=2.0)
        expect(page.locator("#run-name")).to_contain_text("new", timeout=WAIT_MS)
        expect(shown).to_have_text("this is GMI 0\n", timeout=WAIT_MS)
        expect(selected).to_have_value("0")
        page.get_by_role("button", name="old/t0").click()
        selected.select_option("1")
        expect(shown).to_have_text("this is GMI 1\n", timeout=WAIT_MS)
        (old / "layout.json").write_text(tcg_ex(Topology.from_cores([0]), 1, 8).to_json())
        expect(shown).to_have_text("this is GMI 0\n", timeout=WAIT_MS)
        expect(selected).to_have_value("0")
        assert page.complaints == []


HOSTILE = '<img src=x onerror="window.taken=1"><script>window.taken=1</script>'


def test_what_a_run_says_of_itself_is_text(open_page, tmp_path):
    path = pages.make_run(
        tmp_path, name="<b>ant", state="failed", env=HOSTILE, error=HOSTILE,
        restarts=[{"gmi_id": 0, "how": HOSTILE, "time": 1}],
    )  # fmt: skip
    (path / "logs" / "gmi0.log").write_text(f"{HOSTILE}\n")
    with open(path / "metrics.jsonl", "a") as file:
        file.write(pages.line(4, **{"<img src=x onerror=alert(1)>": 1.0, "__proto__": 2.0}))
    (path / "config.yaml").write_text(f"mode: '{HOSTILE}'\nalgorithm: {{name: '{HOSTILE}'}}\n")
    with pages.served(tmp_path) as link:
        page = open_page(link)
        expect(page.locator("#log-text")).to_have_text(f"{HOSTILE}\n")
        expect(page.locator("#alarms li").first).to_have_text(HOSTILE)
        expect(page.locator("#runs-table")).to_contain_text(HOSTILE)
        expect(page.locator("#run-name")).to_contain_text(HOSTILE)
        expect(page.locator("#charts")).to_contain_text("<img src=x onerror=alert(1)>")
        assert page.evaluate("window.taken") is None
        assert page.locator("img, main script, b > b").count() == 0
        assert page.complaints == []


def test_a_search_is_shown_as_it_goes_with_its_reasons(open_page, tmp_path):
    pages.make_store(pages.make_run(tmp_path) / "gcs.sqlite")
    record = tmp_path / "search" / "t0" / RECORD
    record.parent.mkdir(parents=True)
    ranges = {"algorithm": "random", "ranges": {"algorithm.learning_rate": {}}}
    config = {"env": {"id": "CartPole-v1"}, "search": ranges}

    def note(kind, **line):
        with open(record, "a") as file:
            file.write(json.dumps({"kind": kind, **line}) + "\n")

    def tried(trial, kind="ended", **line):
        asked = {"trial": trial, "number": 0, "values": {"algorithm.learning_rate": 0.1}}
        note(kind, **asked, steps=100, start=None, bracket=0, total_s=5.0, **line)

    note("header", format=1, config=config)
    tried(0, return_mean=10.0, reached=120, points=[[50, 1.0], [120, 10.0]])
    with pages.served(tmp_path) as link:
        page = open_page(link)
        search = page.locator("#trials-list details")
        search.locator("summary").click()
        expect(search).to_contain_text("best so far: trial 0")
        expect(search.locator("canvas")).to_be_visible()
        tried(1, return_mean=30.0, reached=120, points=[[50, 2.0], [120, 30.0]])
        tried(2, kind="failed", text=HOSTILE)
        expect(search).to_contain_text("best so far: trial 1", timeout=WAIT_MS)
        expect(search.locator("tbody tr").filter(has_text=HOSTILE)).to_have_count(1)
        expect(search.locator("canvas")).to_be_visible()  # it stays open
        for width in WIDTHS:
            assert_readable(page, width)
        assert page.evaluate("window.taken") is None
        assert page.complaints == []


def test_scripts_that_got_in_would_not_run(open_page, tmp_path):
    """The policy of the page is in force in this browser: what it forbids does not happen."""
    pages.make_run(tmp_path)
    with pages.served(tmp_path) as link:
        page = open_page(link)
        expect(page.locator("#link")).to_have_text("live")
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', `<img src='http://127.0.0.1:1/x'>"
            "<button id=evil onclick='window.taken=1'>x</button>`)"
        )
        page.locator("#evil").click()
        page.evaluate("document.body.append(Object.assign(document.createElement('script'),"
                      " {textContent: 'window.taken=1'}))")  # fmt: skip
        assert page.evaluate("window.taken") is None
        assert len([text for text in page.complaints if "Content Security Policy" in text]) >= 2


def test_another_site_gets_nothing_from_the_page(open_page, browser, tmp_path):
    """A website in the same browser, whose user has opened the page: cookies and all."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    pages.make_run(tmp_path)
    with pages.served("--control", tmp_path) as link:
        base = link.partition("/login")[0]
        context = browser.new_context()
        ours = context.new_page()
        ours.goto(link)
        expect(ours.locator("#link")).to_have_text("live", timeout=WAIT_MS)

        class Evil(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<title>evil</title>")

            def log_message(self, *words):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            evil = context.new_page()
            # "localhost" is another site than 127.0.0.1, and 127.0.0.1 with this port the same one.
            for name in ("localhost", "127.0.0.1"):
                evil.goto(f"http://{name}:{server.server_port}/")
                got = evil.evaluate(
                    """async (base) => {
                      const tries = [
                        () => fetch(base + "/", {credentials: "include"}).then((r) => r.text()),
                        () => fetch(base + "/events", {credentials: "include"})
                                .then((r) => r.text()),
                        () => fetch(base + "/runs/x/stop", {method: "POST", credentials: "include",
                                    headers: {"X-GMI-DRL": "1"}}).then((r) => r.text()),
                        () => fetch(base + "/", {mode: "no-cors", credentials: "include"})
                                .then((r) => r.text()),
                        () => new Promise((done, failed) => {
                          const script = document.createElement("script");
                          script.src = base + "/static/uPlot.iife.min.js";
                          script.onload = () => done("script"); script.onerror = failed;
                          document.head.append(script);
                        }),
                        () => new Promise((done, failed) => {
                          const stream = new EventSource(base + "/events", {withCredentials: true});
                          stream.addEventListener("runs", (event) => done(event.data));
                          stream.onerror = failed;
                        }),
                      ];
                      const got = [];
                      for (const one of tries) got.push(await one().catch(() => ""));
                      return got;
                    }""",
                    base,
                )
                assert got == [""] * 6, name
        finally:
            server.shutdown()
            thread.join(10)
            server.server_close()
            context.close()
