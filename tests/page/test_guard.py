"""Who may see the page: each way in for others is tried."""

import asyncio
import hmac

import pytest

import pages
from gmi_drl.page.app import app_of
from gmi_drl.page.guard import Access, hosts_of

ROUTES = [
    "/",
    "/favicon.ico",
    "/static/page.js",
    "/static/uPlot.min.css",
    "/events",
    "/runs/ID/state",
    "/runs/ID/lineage?of=00",
    "/no-such-route",
]


@pytest.fixture
def page(tmp_path):
    """A page of one run, its secrets, and a client that has none of them."""
    pages.make_run(tmp_path)
    live, access = pages.live_of(tmp_path), pages.access()
    client = pages.Browser(app_of(live, access))
    (client.run,) = [run["id"] for run in live.catalog.as_json()["runs"]]
    client.access = access
    return client


@pytest.fixture
def entered(page):
    """The client after its user has opened the link."""
    assert page.get(f"/login?token={page.access.token}").status == 303
    return page


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_shown_without_the_token(page, route):
    answer = page.get(route.replace("ID", page.run))
    assert answer.status == 401
    assert answer.text == "Open the link that gmi-drl page has printed.\n"


CONTROL = pytest.mark.parametrize("route", ["stop", "checkpoint"])


@CONTROL
def test_nothing_is_changed_without_the_token(page, route):
    answer = page.post(f"/runs/{page.run}/{route}", headers={"X-GMI-DRL": "1"})
    assert answer.status == 401


def test_the_link_lets_in_and_leaves_the_address_bar(page):
    answer = page.get(f"/login?token={page.access.token}")
    assert answer.status == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"gmi_drl_page_{pages.PORT}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert page.access.token not in cookie
    assert page.get("/").status == 200
    assert page.get("/static/page.js").status == 200


def test_with_https_the_cookie_never_leaves_it():
    access = Access(hosts_of(["127.0.0.1"], 1, True), 1, tls=True)
    app = app_of(pages.live_of(None), access)
    client = pages.Browser(app, "https://127.0.0.1:1")
    answer = client.get(f"/login?token={access.token}")
    assert "Secure" in answer.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    ("name", "port", "tls", "sent"),
    [
        ("Example.org", 8686, True, "example.org:8686"),
        ("2001:DB8::1", 8686, True, "[2001:db8::1]:8686"),
        ("example.org", 443, True, "example.org"),
        ("2001:db8::1", 443, True, "[2001:db8::1]"),
        ("127.0.0.1", 80, False, "127.0.0.1"),
        ("127.0.0.1", 443, False, "127.0.0.1:443"),
    ],
)
def test_the_page_answers_to_what_browsers_call_it(name, port, tls, sent):
    access = Access(hosts_of([name], port, tls), port, tls)
    assert access.hosts == {sent}
    assert access.origins == {f"{'https' if tls else 'http'}://{sent}"}


def test_each_start_has_secrets_of_256_bits():
    one, other = pages.access(), pages.access()
    secrets = {one.token, one.session, other.token, other.session}
    assert len(secrets) == 4
    assert all(len(secret) == 43 for secret in secrets)  # base64 of 32 bytes
    assert one.token not in repr(one)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?token=",
        "?token=x",
        "?token={half}",
        "?token={token}x",
        "?token={session}",
        "?x=1&token={token}",
        "?token={token}&token={token}",
    ],
)
def test_a_wrong_link_lets_nobody_in(page, query):
    token, session = page.access.token, page.access.session
    query = query.format(token=token, half=token[:20], session=session)
    answer = page.get(f"/login{query}")
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


def test_the_link_is_opened_and_not_posted_to(page):
    assert page.post(f"/login?token={page.access.token}").status == 401


@pytest.mark.parametrize(
    ("scheme", "secret", "status"),
    [
        ("Bearer", "token", 200),
        ("bearer", "token", 200),
        ("Basic", "token", 401),
        ("Bearer", "session", 401),
        ("Bearer", "", 401),
    ],
)
def test_a_program_sends_the_token_as_a_header(page, scheme, secret, status):
    value = getattr(page.access, secret) if secret else ""
    answer = page.get("/", headers={"Authorization": f"{scheme} {value}"})
    assert answer.status == status


@pytest.mark.parametrize(
    "cookie",
    [
        "gmi_drl_page_1={session}",
        "gmi_drl_page_8686={token}",
        "gmi_drl_page_8686=",
        "x={session}",
        "gmi_drl_page_8686={half}",
        ";;;=",
        "\x01" * 40,
    ],
)
def test_other_cookies_let_nobody_in(page, cookie):
    secret = page.access.session
    text = cookie.format(session=secret, token=page.access.token, half=secret[:20])
    assert page.get("/", headers={"Cookie": text}).status == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8686",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost.evil:8686",
        "127.0.0.1:8686.evil.example",
        "127.0.0.1:8686@evil.example",
        "0.0.0.0:8686",
        "[::1]",
        "",
    ],
)
def test_a_name_that_was_made_to_point_here_is_no_name_of_the_page(entered, host):
    """DNS rebinding: the browser sends the website's name, and the user's cookies for it."""
    for route in ("/", "/events", f"/login?token={entered.access.token}"):
        answer = entered.get(route, headers={"Host": host})
        assert answer.status == 421, route
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8686", "localhost:8686", "LOCALHOST:8686", "[::1]:8686"]
)
def test_the_names_of_this_machine_are(entered, host):
    cookie = f"{entered.access.cookie}={entered.access.session}"
    assert entered.get("/", headers={"Host": host, "Cookie": cookie}).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1",
        "http://127.0.0.1:8687",
        "https://127.0.0.1:8686",
        "http://evil.example:8686",
        "",
    ],
)
def test_other_sites_are_answered_nothing(entered, origin):
    for send in (entered.get, entered.post):
        answer = send("/", headers={"Origin": origin, "X-GMI-DRL": "1"})
        assert answer.status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Same-Origin", "x"])
def test_pages_of_other_sites_and_of_other_ports_are_answered_nothing(entered, site):
    for route in ("/", "/static/page.js", f"/login?token={entered.access.token}"):
        assert entered.get(route, headers={"Sec-Fetch-Site": site}).status == 403


def test_the_page_itself_is_answered(entered):
    headers = {"Origin": pages.BASE, "Sec-Fetch-Site": "same-origin"}
    assert entered.get("/static/page.js", headers=headers).status == 200
    assert entered.get("/", headers={"Sec-Fetch-Site": "none"}).status == 200


@CONTROL
@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_a_form_of_another_site_changes_nothing(entered, value, route):
    headers = {} if value is None else {"X-GMI-DRL": value}
    answer = entered.post(f"/runs/{entered.run}/{route}", headers=headers)
    assert answer.status == 403
    assert "needs the header" in answer.text


@CONTROL
def test_a_page_that_only_shows_asks_for_nothing(entered, route):
    answer = entered.post(f"/runs/{entered.run}/{route}", headers={"X-GMI-DRL": "1"})
    assert answer.status == 403
    assert "--control" in answer.json()["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_nothing_else_can_be_asked(entered, method):
    routes = ("stop", "checkpoint", "state")
    for route in ("/", *(f"/runs/{entered.run}/{name}" for name in routes)):
        answer = entered.ask(method, route, headers={"X-GMI-DRL": "1"})
        assert answer.status == 405, (method, route)


@CONTROL
def test_a_get_changes_nothing(entered, route):
    assert entered.get(f"/runs/{entered.run}/{route}").status == 405


def test_secrets_are_compared_in_constant_time(entered, monkeypatch):
    """Whatever lets in is compared by `hmac.compare_digest`: if that says no, all is refused."""
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: False)
    bearer = {"Authorization": f"Bearer {entered.access.token}"}
    assert entered.get("/").status == 401
    assert entered.get("/", headers=bearer).status == 401
    assert entered.get(f"/login?token={entered.access.token}").status == 401


@pytest.mark.parametrize(
    ("route", "headers", "status"),
    [
        ("/", {}, 200),
        ("/no-such-route", {}, 404),
        ("/", {"Host": "evil.example"}, 421),
        ("/", {"Origin": "null"}, 403),
        ("/", {"Cookie": ""}, 401),
    ],
)
def test_every_answer_forbids_what_it_does_not_need(entered, route, headers, status):
    answer = entered.get(route, headers=headers)
    assert answer.status == status
    policy = dict(
        rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


def test_there_are_no_websockets(tmp_path):
    said = []

    async def open_one():
        async def send(message):
            said.append(message)

        scope = {"type": "websocket", "path": "/events", "headers": []}
        await app_of(pages.live_of(tmp_path), pages.access())(scope, None, send)

    asyncio.run(open_one())
    assert said == [{"type": "websocket.close", "code": 1008}]


def test_a_request_that_names_two_hosts_is_answered_to_neither(entered):
    hosts = [["127.0.0.1:8686", "evil.example"], ["127.0.0.1:8686", "127.0.0.1:8686"]]
    for both in hosts:
        assert entered.get("/", headers={"Host": both}).status == 421


@pytest.mark.parametrize(
    "name",
    [
        "../guard.py",
        "..%2fguard.py",
        "%2e%2e/guard.py",
        "..%5cguard.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "page.js%00.css",
        "",
        ".",
        "page.py",
    ],
)
def test_no_file_but_the_pages_own_is_given(entered, name):
    answer = entered.get(f"/static/{name}")
    assert answer.status in (404, 307)
    assert "import" not in answer.text


@pytest.mark.parametrize(
    "id", ["..", "../..", "%2e%2e%2f%2e%2e", "ant", "ant/t0", "ant%2ft0", "%2Fetc", "0" * 16, "*"]
)
def test_a_run_is_looked_up_and_its_id_is_no_path(entered, id):
    for path in (f"/runs/{id}/state", f"/runs/{id}/lineage?of=00"):
        assert entered.get(path).status in (404, 307)
    assert entered.get(f"/events?run={id}").status == 404
