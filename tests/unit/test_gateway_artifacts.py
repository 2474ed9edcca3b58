"""Files sent one by one under their digest, and imported together: whole or not at all, and each once."""

import hashlib
import socket
import time

import httpx
import pytest

from tests.factories import fake_simulators
from tests.fakes.sass_tracer import raw_kernel
from tests.served import TOKEN, served

LIMIT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home"), fake_simulators(), upload_bytes_limit=LIMIT_BYTES) as running:
        yield running


def digest_of(body):
    return hashlib.sha256(body).hexdigest()


def put(server, body, *, digest="", name="kernel-1.trace", token=TOKEN):
    return httpx.put(
        f"{server.url}/api/artifacts/{digest or digest_of(body)}",
        params={"name": name},
        content=body,
        headers={"authorization": f"Bearer {token}"},
    )


def kept(server):
    """Every file of the store, those of an upload that goes on included."""
    return sorted(path.name for path in server.engine.embedded.artifacts.folder.rglob("*") if path.is_file())


def imported(server, **body):
    return httpx.post(f"{server.url}/api/imports", json=body, headers={"authorization": f"Bearer {TOKEN}"})


def test_a_body_is_stored_under_its_digest_and_twice_is_once(server):
    body = b"x" * 300_000
    before = kept(server)
    for _ in range(2):
        answer = put(server, body)
        assert answer.status_code == 201
        assert answer.json() == {"digest": digest_of(body), "name": "kernel-1.trace", "size_bytes": 300_000}
    assert kept(server) == sorted([*before, digest_of(body)[2:]])
    assert server.engine.embedded.artifacts.path(digest_of(body)).read_bytes() == body


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        ({"digest": "0" * 64}, 400, "the body's SHA-256 is"),
        ({"digest": "xyz"}, 422, "digest"),
        ({"name": "../../etc/passwd"}, 422, "name"),
        ({"name": ""}, 422, "name"),
        ({"token": "another"}, 401, "token"),
    ],
)
def test_what_is_not_what_it_says_is_refused_and_leaves_nothing(server, options, status, word):
    before = kept(server)
    answer = put(server, b"some body" * 10_000, **options)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]
    assert kept(server) == before


def test_a_body_beyond_the_limit_is_refused_whether_or_not_it_says_its_length(server):
    before = kept(server)
    body = b"x" * (LIMIT_BYTES + 1)
    assert put(server, body).status_code == 413
    headers = {"authorization": f"Bearer {TOKEN}"}
    address = f"{server.url}/api/artifacts/{digest_of(body)}?name=a"
    chunked = httpx.put(address, content=(body[at : at + 65536] for at in range(0, len(body), 65536)), headers=headers)
    assert chunked.status_code == 413
    assert kept(server) == before


def test_a_sender_that_dies_in_the_middle_leaves_nothing(server):
    before = kept(server)
    body = b"x" * 500_000
    head = (
        f"PUT /api/artifacts/{digest_of(body)}?name=a HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body[:300_000])
        time.sleep(0.3)
    deadline = time.monotonic() + 10
    while kept(server) != before:
        assert time.monotonic() < deadline, kept(server)
        time.sleep(0.05)


def test_files_that_were_sent_are_imported_together(server):
    first, second = raw_kernel("first"), raw_kernel("second")
    listed = b"kernel-1.trace\nkernel-2.trace\nkernel-1.trace\n"
    names = {"kernel-1.trace": first, "kernel-2.trace": second, "kernelslist": listed}
    for name, body in names.items():
        assert put(server, body, name=name).status_code == 201
    answer = imported(
        server, name="traced", artifacts=[{"digest": digest_of(body), "name": name} for name, body in names.items()]
    )
    assert answer.status_code == 202, answer.text
    trace_id = answer.json()["trace_id"]
    deadline = time.monotonic() + 20
    while (report := server.engine.trace_report(trace_id))["status"] != "complete":
        assert time.monotonic() < deadline, report
        time.sleep(0.05)
    assert (report["launches"], report["tool"]) == (3, "accelsim")


def test_what_was_never_sent_cannot_be_imported(server):
    answer = imported(server, artifacts=[{"digest": "1" * 64, "name": "kernel-1.trace"}])
    assert answer.status_code == 404
    assert "1" * 64 in answer.json()["error"]
    assert imported(server, artifacts=[]).status_code == 422
    assert imported(server, artifacts=[{"digest": "1" * 63, "name": "x"}]).status_code == 422
