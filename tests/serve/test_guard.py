"""Who may ask, and what every answer carries."""

import json
import logging

import pytest
from serving import app_of, ask
from starlette.testclient import TestClient

from counterfactual_serve.guard import Access, check_json, host_name, is_loopback
from counterfactual_serve.metrics import JsonLines
from counterfactual_serve.reading import RefusedError
from counterfactual_serve.server import Address

TOKEN = "a-token-of-some-length"  # noqa: S105 - opens nothing but this test


@pytest.fixture(scope="module")
def guarded(served):
    """The application as others on the network see it."""
    app = app_of(served, access=Access(("advice.example.org",), TOKEN))
    with TestClient(app, base_url="http://advice.example.org") as client:
        yield client


# ---- hosts and origins ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_names_of_this_machine_are_known(client, host):
    assert client.get("/api/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::2]"],
)
def test_a_name_that_was_pointed_here_by_others_is_refused(client, host):
    response = client.get("/api/model", headers={"host": host})
    assert response.status_code == 403 and response.json()["error"]["code"] == "host"
    assert client.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8000"]
)
def test_other_pages_may_not_ask(client, denied, origin):
    response = client.post(
        "/api/v1/predict", json={"rows": denied[:1]}, headers={"origin": origin}
    )
    assert response.status_code == 403 and response.json()["error"]["code"] == "origin"


def test_our_own_page_may_ask(client, denied):
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert (
        client.post("/api/v1/predict", json={"rows": denied[:1]}, headers=own).status_code
        == 200
    )
    # Behind a proxy that speaks https.
    secure = {"origin": "https://127.0.0.1:8000"}
    assert (
        client.post("/api/v1/predict", json={"rows": denied[:1]}, headers=secure).status_code
        == 200
    )


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_may_lead_to_the_page_but_not_to_the_api(client, site):
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200
    assert client.get("/api/model", headers={"sec-fetch-site": site}).status_code == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_is_refused(client, kind):
    response = client.post(
        "/api/v1/predict", content=b'{"rows": []}', headers={"content-type": kind}
    )
    assert response.status_code == 415


def scope_of(**headers: str | list[str]) -> dict:
    """A request as the server hands it on: clients and servers on the way would refuse some of
    them.
    """
    pairs = {"host": "127.0.0.1:8000", "content-type": "application/json", **headers}
    raw = []
    for name, value in pairs.items():
        values = [value] if isinstance(value, str) else value
        raw += [(name.encode(), one.encode()) for one in values]
    return {"type": "http", "method": "POST", "path": "/api/v1/predict", "headers": raw}


def test_two_ways_to_say_where_a_body_ends_are_refused():
    Access().check(scope_of(**{"content-length": "2"}))
    Access().check(scope_of(**{"transfer-encoding": "chunked"}))
    with pytest.raises(RefusedError, match="a length or comes in chunks, not both") as refused:
        Access().check(scope_of(**{"content-length": "2", "transfer-encoding": "chunked"}))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", "127.0.0.1:8000"),
        ("origin", "http://127.0.0.1:8000"),
        ("sec-fetch-site", "same-origin"),
        ("authorization", f"Bearer {TOKEN}"),
    ],
)
def test_a_header_that_stands_twice_is_refused(name, value):
    access = Access(token=TOKEN)
    known = {"authorization": f"Bearer {TOKEN}"}
    access.check(scope_of(**{**known, name: value}))
    with pytest.raises(RefusedError, match=f"The header {name} stands twice") as refused:
        access.check(scope_of(**{**known, name: [value, value]}))
    assert refused.value.status == 400


def test_two_types_of_one_body_are_refused():
    check_json(scope_of(**{"content-type": "application/json"}))
    with pytest.raises(RefusedError, match="The header content-type stands twice"):
        check_json(scope_of(**{"content-type": ["application/json", "application/json"]}))


# ---- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ü"],
)
def test_without_the_token_the_api_is_closed(guarded, given):
    headers = {} if given is None else {"authorization": given.encode()}
    for path in (
        "/api/v1/model",
        "/api/schema",
        "/metrics",
        "/api/openapi.json",
        "/api/nothing",
    ):
        response = guarded.get(path, headers=headers)
        assert response.status_code == 401 and response.json()["error"]["code"] == "token"
        assert response.headers["www-authenticate"] == "Bearer"


def test_a_path_that_a_proxy_mounts_the_page_under_opens_nothing(served):
    app = app_of(served, access=Access(("advice.example.org",), TOKEN))
    with TestClient(app, base_url="http://advice.example.org", root_path="/advice") as client:
        for path in ("/advice/api/v1/model", "/advice/metrics", "//api/model", "/api/model"):
            assert client.get(path).status_code == 401
        assert (
            client.get("/advice/health").status_code == 200
            and client.get("/advice/").status_code == 200
        )
        assert (
            client.get(
                "/advice/api/model", headers={"authorization": f"Bearer {TOKEN}"}
            ).status_code
            == 200
        )


def test_with_the_token_it_is_open(guarded, denied):
    guarded.headers["authorization"] = f"Bearer {TOKEN}"
    assert ask(guarded, "predict", rows=denied[:1])["predictions"]
    del guarded.headers["authorization"]


def test_page_and_health_hold_no_data_and_need_no_token(guarded):
    page = guarded.get("/")
    assert page.status_code == 200 and "granted" not in page.text and "income" not in page.text
    assert guarded.get("/health").status_code == 200


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/health", "/api/model", "/nowhere", "/static/page.js"])
def test_every_answer_forbids_what_a_page_does_not_need(client, path):
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert (
        headers["x-content-type-options"] == "nosniff"
        and headers["referrer-policy"] == "no-referrer"
    )
    assert (
        headers["cross-origin-resource-policy"] == "same-origin"
        and headers["x-frame-options"] == "DENY"
    )
    assert len(headers["x-request-id"]) == 16 and "access-control-allow-origin" not in headers
    assert headers["cache-control"] == (
        "public, max-age=31536000, immutable" if "static" in path else "no-store"
    )


def test_the_page_names_its_files_by_their_content(client):
    page = client.get("/").text
    for name in ("page.js", "page.css"):
        address = page.split(f"static/{name}?v=")[1].split('"')[0]
        assert (
            len(address) == 12 and client.get(f"/static/{name}?v={address}").status_code == 200
        )
    assert (
        "<script>" not in page
        and " style=" not in page
        and "http" not in page.split("<body")[0]
    )


# ---- logs and numbers ----------------------------------------------------------------------------


def test_logs_tell_what_happened_and_nothing_of_anybody(client, denied, caplog):
    canary = "CANARY-7"
    with caplog.at_level(logging.INFO, "counterfactual_serve"):
        ask(client, "predict", rows=[{**denied[0], "job": canary}])
        client.get(
            f"/{canary}?q={canary}", headers={"authorization": canary, "user-agent": canary}
        )
        client.post("/api/v1/explain", json={canary: 1})
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [line["status"] for line in lines] == [200, 404, 400]
    assert [line["path"] for line in lines] == ["/api/v1/predict", "other", "/api/v1/explain"]
    assert lines[0]["rows"] == 1 and canary not in json.dumps(lines)
    assert set(lines[0]) == {
        "time",
        "level",
        "event",
        "id",
        "method",
        "path",
        "status",
        "ms",
        "rows",
    }


def test_of_other_packages_only_the_fixed_text_is_logged():
    record = logging.LogRecord(
        "uvicorn.error", logging.WARNING, "", 0, "Bad request from %s", ("secret",), None
    )
    line = JsonLines().format(record)
    assert json.loads(line)["message"] == "Bad request from %s" and "secret" not in line


def test_a_traceback_of_the_web_server_is_not_logged():
    text = "Traceback (most recent call last):\n  File secret.py\nValueError: cell 'x'"
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, text, (), None)
    assert json.loads(JsonLines().format(record))["message"] == "a fault"


def test_metrics_count_requests_and_batches(client, denied):
    ask(client, "explain", rows=denied[:2])
    text = client.get("/metrics").text
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert int(numbers['ct_requests_total{path="/api/v1/explain",status="200"}']) >= 1
    assert int(numbers["ct_batches_total"]) >= 1 and int(numbers["ct_batched_rows_total"]) >= 2
    assert numbers["ct_failed_searches_total"] == "0"
    assert float(numbers['ct_request_seconds_bucket{path="/api/v1/explain",le="+Inf"}']) >= 1


# ---- addresses -----------------------------------------------------------------------------------


def test_names_of_hosts_lose_their_ports():
    named = {"a.b:80": "a.b", "[::1]:8000": "::1", "A": "a", "[::1]": "::1"}
    named |= dict.fromkeys(
        ["[::1]evil.com", "127.0.0.1:80@evil.com", "a/b", "http://a", "a:b", "::1", ""], ""
    )
    assert {host: host_name(host) for host in named} == named


def test_what_is_no_name_opens_nothing_however_the_server_is_known():
    for address in (
        Address(),
        Address("::1"),
        Address("10.0.0.1", names=("advice.example.org:443",)),
    ):
        access = address.access()
        assert "" not in access.hosts and "::1" in access.hosts
        for host in ("", "127.0.0.1/x", "x@127.0.0.1", "[::1]evil.com", "::1:"):
            scope = {"path": "/", "method": "GET", "headers": [(b"host", host.encode())]}
            with pytest.raises(RefusedError, match="not known by that name"):
                access.check(scope)
    assert "advice.example.org" in access.hosts and access.token
    assert Address().access().token is None and Address(names=("a.org",)).access().token


def test_loopback_is_told_from_what_others_reach():
    assert all(map(is_loopback, ["127.0.0.1", "localhost", "::1", "127.9.9.9"]))
    assert not any(map(is_loopback, ["::", "10.0.0.1", "192.168.0.1", "example.org"]))
