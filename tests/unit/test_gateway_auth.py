"""Who may ask the gateway, and from where."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from services.gateway.auth import SECURITY_HEADERS, Guard, is_known_host, known_hosts

TOKEN = "the-token-of-this-server"
BASE = "http://127.0.0.1:8321"
WS = "ws://127.0.0.1:8321/ws"


async def hello(_):
    return PlainTextResponse("hello")


async def live(socket):
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


@pytest.fixture
def client():
    app = Starlette(
        routes=[
            Route("/api/health", hello),
            Route("/api/runs", hello, methods=["GET", "POST"]),
            WebSocketRoute("/ws", live),
            Route("/{path:path}", hello),
        ]
    )
    guard = Guard(app, token=TOKEN, hosts=known_hosts("127.0.0.1")[0], is_open_bind=False, port=8321)
    return TestClient(guard, base_url=BASE, follow_redirects=False)


def bearer(token=TOKEN):
    return {"Authorization": f"Bearer {token}"}


def test_health_and_the_page_need_no_token(client):
    assert client.get("/api/health").status_code == 200
    assert client.get("/").status_code == 200
    assert client.get("/runs/abc").status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
def test_without_the_token_nothing_is_answered(client, token):
    response = client.get("/api/runs", headers={"Authorization": f"Bearer {token}".encode()})
    assert response.status_code == 401
    assert "token" in response.json()["error"]


def test_the_header_lets_in(client):
    assert client.get("/api/runs", headers=bearer()).status_code == 200


def test_the_address_with_the_token_becomes_a_cookie_and_loses_it(client):
    response = client.get(f"/runs/abc?token={TOKEN}&at=7")
    assert response.status_code == 303
    assert response.headers["location"] == "/runs/abc?at=7"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/api/runs").status_code == 200  # the client keeps the cookie


def test_a_wrong_token_in_the_address_gives_no_cookie(client):
    response = client.get("/?token=wrong")
    assert response.status_code == 401
    assert "set-cookie" not in response.headers
    assert client.get("/api/runs").status_code == 401


def test_the_token_in_an_api_address_is_not_taken(client):
    """It would stay in logs and histories."""
    assert client.get(f"/api/runs?token={TOKEN}").status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "///evil.example"])
def test_the_exchange_never_leaves_this_server(client, path):
    response = client.get(f"{BASE}{path}?token={TOKEN}")
    assert response.headers["location"].startswith("/")
    assert not response.headers["location"].startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "localhost:x", "", "[::1"]
)
def test_a_strangers_name_for_this_machine_is_refused(client, host):
    response = client.get("/api/runs", headers=bearer() | {"Host": host})
    assert response.status_code == 421


@pytest.mark.parametrize("host", ["localhost:8321", "127.0.0.1", "LOCALHOST:9000", "[::1]:8321"])
def test_this_machines_own_names_are_known_on_any_port(client, host):
    assert client.get("/api/runs", headers=bearer() | {"Host": host}).status_code == 200


def test_bound_to_all_addresses_an_address_is_known_and_a_name_is_not():
    hosts, is_open_bind = known_hosts("0.0.0.0")
    assert is_known_host("192.168.7.9:8321", hosts, is_open_bind=is_open_bind)
    assert not is_known_host("evil.example:8321", hosts, is_open_bind=is_open_bind)
    assert not is_known_host("192.168.7.9:8321", *[known_hosts("127.0.0.1")[0]], is_open_bind=False)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8321"])
@pytest.mark.parametrize("path", ["/api/runs", "/api/health"])
def test_pages_of_another_origin_are_refused_even_with_the_token(client, origin, path):
    assert client.get(path, headers=bearer() | {"Origin": origin}).status_code == 403
    assert client.post("/api/runs", headers=bearer() | {"Origin": origin}).status_code == 403


def test_the_own_page_may_ask(client):
    assert client.post("/api/runs", headers=bearer() | {"Origin": BASE}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), bearer() | {"Origin": "http://evil.example"}, bearer() | {"Host": "evil.example"}],
    ids=["no token", "wrong token", "foreign page", "foreign name"],
)
def test_a_websocket_is_refused_before_it_opens(client, headers):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(WS, headers=headers) as socket:
        socket.receive_text()


def test_a_websocket_opens_with_the_token_and_with_the_cookie(client):
    with client.websocket_connect(WS, headers=bearer() | {"Origin": BASE}) as socket:
        assert socket.receive_text() == "hello"
    client.get(f"/?token={TOKEN}")
    with client.websocket_connect(WS, headers={"Origin": BASE}) as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize("path", ["/", "/api/health", "/api/runs"])
def test_every_answer_has_the_security_headers(client, path):
    headers = client.get(path).headers
    for name, value in SECURITY_HEADERS.items():
        assert headers[name] == value
    assert "unsafe" not in headers["content-security-policy"]
