"""`gmi-drl page` as it is called: its link, its stream, and what it refuses."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

import pages
from gmi_drl.page.catalog import Catalog
from gmi_drl.page.server import Address, PageError, serve
from waits import until


def split(link):
    base, _, token = link.partition("/login?token=")
    return base, int(base.rpartition(":")[2]), token


def asked(port, text):
    """What is answered to these bytes, as they are."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.decode()


def test_the_page_moves_with_a_run_and_hides_its_link(tmp_path):
    path = pages.make_run(tmp_path)
    with pages.served(tmp_path) as link:
        base, port, token = split(link)
        assert base == f"http://127.0.0.1:{port}"
        first = dict(_some(pages.events(link), 2))
        (run,) = first["runs"]["runs"]
        stream = pages.events(link, f"?run={run['id']}&gmi=1")
        shown = dict(_some(stream, 6))
        assert shown["run"]["head"]["iteration"] == 3
        assert shown["log"]["text"] == "this is GMI 1\n"
        with open(path / "metrics.jsonl", "a") as file:
            file.write(pages.line(4))
        for name, content in stream:
            if name == "curves":
                assert content["columns"]["iteration"] == [4]
                break
        stream.close()
        # What no client library lets through.
        auth = f"Authorization: Bearer {token}\r\n"
        host = f"Host: 127.0.0.1:{port}\r\nConnection: close\r\n"
        for target in ("/static/../guard.py", "/../../etc/passwd", "//etc/passwd",
                       "/static/..%2f..%2fcurves.py", "/runs/..%2f..%2f/state"):  # fmt: skip
            answer = asked(port, f"GET {target} HTTP/1.1\r\n{host}{auth}\r\n")
            assert answer.startswith(("HTTP/1.1 404", "HTTP/1.1 307")), target
            assert "root:" not in answer
            assert "import" not in answer
        for bad in ("", "Host: evil.example\r\n", f"{host}Host: evil.example\r\n"):
            answer = asked(port, f"GET / HTTP/1.1\r\n{bad}{auth}\r\n")
            assert answer.split()[1] in ("400", "421"), bad
        assert asked(port, f"GET / HTTP/1.0\r\n{auth}\r\n").split()[1] == "421"
        assert "server:" not in asked(port, f"GET / HTTP/1.1\r\n{host}\r\n").lower()


def _some(stream, many):
    yield from (next(stream) for _ in range(many))


def test_viewers_are_few_and_those_that_leave_make_room(tmp_path):
    pages.make_run(tmp_path)
    with pages.served(tmp_path) as link:
        _, port, token = split(link)
        streams = []
        for _ in range(32):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/events", headers={"Authorization": f"Bearer {token}"})
            streams.append((connection, connection.getresponse()))
            assert streams[-1][1].status == 200
            streams[-1][1].readline()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            next(pages.events(link))
        for connection, answer in streams:
            answer.close()
            connection.close()

        def is_let_in():
            with contextlib.suppress(urllib.error.HTTPError):
                return next(pages.events(link))

        until(is_let_in, "room for another one", 10)  # it looks at them once a second


def test_the_page_is_on_this_machine_alone(tmp_path):
    pages.make_run(tmp_path)
    with pages.served(tmp_path) as link:
        _, port, _ = split(link)
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        addresses = {line.split()[1] for line in lines}
        (here,) = [address for address in addresses if address.endswith(f":{port:04X}")]
        assert here == f"0100007F:{port:04X}"


def refused(*arguments, cwd=None):
    done = subprocess.run(
        [sys.executable, "-m", "gmi_drl", "page", *map(str, arguments)],
        capture_output=True, text=True, timeout=50, cwd=cwd, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_port_in_use_is_told_with_the_remedy(tmp_path):
    pages.make_run(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(tmp_path, "--port", port)
    assert said.startswith(f"--port {port}: Address already in use on 127.0.0.1.")
    assert "--port 0" in said


def test_a_folder_that_is_not_ours_is_refused(tmp_path):
    assert "nothing of gmi-drl is in it" in refused(tmp_path)
    assert "no such folder" in refused(tmp_path / "none")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (Address("0.0.0.0", 0), "others could read the page"),
        (Address("::", 0), "others could read the page"),
        (Address("192.0.2.1", 0), "others could read the page"),
        (Address("example.org", 0), "others could read the page"),
        (Address("127.0.0.1", 0, certificate="x"), "belong together"),
        (Address("127.0.0.1", 0, key="x"), "belong together"),
        (Address("0.0.0.0", 0, "/nowhere", "/nowhere"), "no certificate with its key"),
    ],
)
def test_an_address_that_is_open_to_others_needs_a_certificate(tmp_path, address, why):
    pages.make_run(tmp_path)
    with pytest.raises(PageError, match=why):
        serve(Catalog(tmp_path), address, control=False)


def test_an_address_that_this_machine_does_not_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Address, "is_local", True)
    with pytest.raises(PageError, match=r"--port 0: .* on 192\.0\.2\.1"):
        serve(Catalog(tmp_path), Address("192.0.2.1", 0), control=False)


def test_without_its_packages_the_page_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(PageError, match=r"needs uvicorn, .*\[page\]"):
        serve(Catalog(tmp_path), Address(port=0), control=False)


def test_the_front_page_imports_no_server():
    code = "import sys, gmi_drl.cli.main as m; m.main(['page', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert not {"starlette", "uvicorn", "torch"} & set(done.stdout.split())


def test_runs_are_looked_at_before_the_link_is_there(tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    done = []
    monkeypatch.setattr("gmi_drl.page.live.Live.changes", lambda *_: done.append("looked"))
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: done.append("served"))
    serve(Catalog(tmp_path), Address(port=0), control=False, say=lambda _: done.append("link"))
    assert done == ["looked", "link", "served"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "0.0.0.0"])
def test_the_link_leads_to_where_the_page_listens(tmp_path, monkeypatch, host):
    pytest.importorskip("uvicorn")
    monkeypatch.setattr("gmi_drl.page.server._check", lambda address: None)
    links = []

    def visit(server, sockets):
        base, port, _ = split(links[0])
        name = base.removeprefix("http://").rpartition(":")[0].strip("[]")
        assert sockets[0].getsockname()[1] == port
        socket.create_connection((name, port), timeout=10).close()
        links.append("visited")

    monkeypatch.setattr("uvicorn.Server.run", visit)
    serve(Catalog(tmp_path), Address(host, port=0), control=False, say=links.append)
    assert links[-1] == "visited"


def test_ctrl_c_ends_the_page_and_its_viewers(tmp_path):
    pages.make_run(tmp_path)
    with pages.served(tmp_path) as link:
        stream = pages.events(link)
        next(stream)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 15
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert all(name in ("trials", "layout", "run", "curves") for name, _ in stream)


def test_a_control_store_is_read_and_a_link_to_another_is_not(tmp_path):
    from gmi_drl.page.app import app_of
    from gmi_drl.page.safe_files import id_of

    path = pages.make_run(tmp_path / "runs")
    access = pages.access()
    browser = pages.Browser(app_of(pages.live_of(tmp_path / "runs"), access))
    browser.get(f"/login?token={access.token}")
    state = f"/runs/{id_of(path)}/state"
    assert "No such file" in browser.get(state).json()["error"]
    pages.make_store(tmp_path / "gcs.sqlite")
    os.symlink(tmp_path / "gcs.sqlite", path / "gcs.sqlite")
    assert "leads out" in browser.get(state).json()["error"]
    (path / "gcs.sqlite").unlink()
    os.rename(tmp_path / "gcs.sqlite", path / "gcs.sqlite")
    content = browser.get(state).json()
    (task,) = content["tasks"]
    assert task["name"] == "square"
    tree = browser.get(f"/runs/{id_of(path)}/lineage?of={task['newest']}").json()
    assert "square" in tree["lines"][0]
    for suffix in ("-wal", "-shm", "-journal"):
        os.symlink("/etc/passwd", path / f"gcs.sqlite{suffix}")
        assert "leads out" in browser.get(state).json()["error"]
        (path / f"gcs.sqlite{suffix}").unlink()
    for id in ("", "zz", "' OR 1=1 --", "ff" * 40):
        assert "error" in browser.get(f"/runs/{id_of(path)}/lineage?of={id}").json()
    json.dumps(content)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_with_a_certificate_the_page_speaks_https_to_others(tmp_path):
    pages.make_run(tmp_path / "runs")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=50,
    )  # fmt: skip
    arguments = ("--host", "0.0.0.0", "--certificate", certificate, "--key", key)
    with pages.served(tmp_path / "runs", *arguments) as link:
        base, _, token = link.partition("/login?token=")
        assert base.startswith("https://127.0.0.1:")
        port = int(base.rpartition(":")[2])
        context = ssl.create_default_context(cafile=certificate)
        for host, status in (
            ("localhost", 303),
            (socket.gethostname(), 303),
            ("evil.example", 421),
        ):
            with contextlib.closing(
                http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
            ) as connection:
                headers = {"Host": f"{host}:{port}"}
                connection.request("GET", f"/login?token={token}", headers=headers)
                answer = connection.getresponse()
                assert answer.status == status, host
                cookie = answer.getheader("Set-Cookie", "")
                assert ("; Secure" in cookie) == (status == 303)
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        plain.request("GET", "/")
        with contextlib.closing(plain), pytest.raises((OSError, http.client.HTTPException)):
            plain.getresponse()
