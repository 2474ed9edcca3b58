"""A folder and a bucket keep artifacts alike: whole, by digest, found by all."""

import hashlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from services.runtime.artifacts import UnknownArtifact, UploadTooLarge, open_artifacts
from services.runtime.remote_artifacts import BadArtifact, RemoteArtifactStore

ROOT = Path(__file__).resolve().parents[2]
CHUNK_BYTES, CHUNK_COUNT = 64 << 10, 40

ROWS = pa.RecordBatch.from_pydict({"duration_ns": [1, 2, None]})
KEY = hashlib.sha256(b"a key").hexdigest()


@pytest.fixture(scope="module")
def bucket():
    """A server that speaks S3, on this machine."""
    server_of = pytest.importorskip(
        "moto.server", reason="pip install -r infra/requirements/test.txt"
    ).ThreadedMotoServer
    server = server_of(ip_address="127.0.0.1", port=0)
    before = dict(os.environ)
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    server.start()
    host, port = server.get_host_and_port()
    options = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    from pyarrow import fs

    remote, _ = fs.FileSystem.from_uri(f"s3://cascade?{options}")
    remote.create_dir("cascade")
    yield f"s3://cascade/state?{options}", remote
    server.stop()
    os.environ.clear()
    os.environ |= before


@pytest.fixture(params=["folder", "bucket"])
def stores(request, tmp_path):
    """Makes a store as another machine would have it: a folder is shared, a bucket has a new folder in front."""
    if request.param == "folder":
        return lambda name: open_artifacts(tmp_path / "shared", "")
    uri, _ = request.getfixturevalue("bucket")
    return lambda name: open_artifacts(tmp_path / name, uri)


def test_what_one_puts_another_finds_whole(stores):
    body = os.urandom(20_000_000)  # several parts
    artifact = stores("one").put(io.BytesIO(body), "trace.json.gz")
    assert artifact.digest == hashlib.sha256(body).hexdigest()
    assert (artifact.name, artifact.size_bytes) == ("trace.json.gz", len(body))
    other = stores("other")
    assert other.path(artifact.digest).read_bytes() == body
    assert other.path(artifact.digest) == other.path(artifact.digest)  # one copy per machine
    assert stores("one").put(io.BytesIO(body), "same.json").digest == artifact.digest


def test_what_nobody_put_is_unknown(stores):
    with pytest.raises(UnknownArtifact, match="no artifact"):
        stores("one").path("0" * 64)
    for wrong in ("../../etc/passwd", "0" * 63, "g" * 64):
        with pytest.raises(UnknownArtifact, match="not a SHA-256"):
            stores("one").path(wrong)


def test_one_that_is_too_large_leaves_nothing(stores):
    store = stores("one")
    with pytest.raises(UploadTooLarge):
        store.put(io.BytesIO(b"x" * 1001), "large", bytes_limit=1000)
    with pytest.raises(UnknownArtifact):
        stores("other").path(hashlib.sha256(b"x" * 1001).hexdigest())
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_results_are_kept_for_all_and_found_by_their_key(stores):
    assert stores("one").get_result(KEY) is None
    stores("one").put_result(KEY, ROWS)
    assert stores("other").get_result(KEY) == ROWS


def test_a_damaged_object_is_refused_and_not_kept(bucket, tmp_path):
    uri, remote = bucket
    digest = hashlib.sha256(b"right").hexdigest()
    with remote.open_output_stream(f"cascade/state/{digest[:2]}/{digest[2:]}") as out:
        out.write(b"wrong")
    store = open_artifacts(tmp_path / "reader", uri)
    with pytest.raises(BadArtifact, match="damaged in its bucket"):
        store.path(digest)
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


# --- large bodies in a bucket: chunks, interruptions, several processes -------------------------------------------

# Works slowly, chunk by chunk, and says each; an argument is a digest to fetch or a file to store.
WORKER = """
import sys, time
from pathlib import Path
from services.runtime.remote_artifacts import RemoteArtifactStore

class Slow(RemoteArtifactStore):
    def _fetch_chunk(self, digest):
        time.sleep(0.05)
        print("fetched", flush=True)
        return super()._fetch_chunk(digest)

    def _upload_chunk(self, digest, chunk):
        super()._upload_chunk(digest, chunk)
        print("stored", flush=True)
        time.sleep(0.05)

folder, uri, what, chunk_bytes = sys.argv[1:]
store = Slow(Path(folder), uri, chunk_bytes=int(chunk_bytes))
if Path(what).is_file():
    with open(what, "rb") as body:
        store.put(body, "large")
else:
    print("at", store.path(what), flush=True)
"""


class Counting(RemoteArtifactStore):
    """How many chunks it has moved."""

    def __init__(self, folder, uri):
        super().__init__(folder, uri, chunk_bytes=CHUNK_BYTES)
        self.stored = self.fetched = 0

    def _upload_chunk(self, digest, chunk):
        before = self._is_there(self._place(digest, "chunks/"))
        super()._upload_chunk(digest, chunk)
        self.stored += not before

    def _fetch_chunk(self, digest):
        self.fetched += 1
        return super()._fetch_chunk(digest)


def worker(folder, uri, what):
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), uri, str(what), str(CHUNK_BYTES)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def killed_after(process, chunk_count):
    for _ in range(chunk_count):
        assert process.stdout.readline().strip() in {"fetched", "stored"}
    process.send_signal(signal.SIGKILL)
    process.wait(30)


@pytest.fixture
def large(tmp_path):
    """A body of many chunks, the last one cut."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(CHUNK_BYTES * (CHUNK_COUNT - 1) + 1234))
    return path


def test_an_upload_that_was_killed_shows_nothing_and_goes_on_where_it_was(bucket, large, tmp_path):
    uri, _ = bucket
    killed_after(worker(tmp_path / "one", uri, large), 10)
    digest = hashlib.sha256(large.read_bytes()).hexdigest()
    with pytest.raises(UnknownArtifact):
        Counting(tmp_path / "other", uri).path(digest)
    again = Counting(tmp_path / "one", uri)
    with large.open("rb") as body:
        assert again.put(body, "large").digest == digest
    assert CHUNK_COUNT - 12 <= again.stored <= CHUNK_COUNT - 10
    assert Counting(tmp_path / "other", uri).path(digest).read_bytes() == large.read_bytes()
    once_more = Counting(tmp_path / "third", uri)
    with large.open("rb") as body:
        once_more.put(body, "large")
    assert once_more.stored == 0


def test_a_fetch_that_was_killed_shows_nothing_and_goes_on_where_it_was(bucket, large, tmp_path):
    uri, _ = bucket
    with large.open("rb") as body:
        digest = Counting(tmp_path / "one", uri).put(body, "large").digest
    folder = tmp_path / "other"
    killed_after(worker(folder, uri, digest), 15)
    assert not (folder / digest[:2] / digest[2:]).exists()
    (left,) = folder.glob("fetching-*")
    assert left.stat().st_size >= 12 * CHUNK_BYTES  # what was still in the process's memory went with it
    with left.open("r+b") as partial:  # a chunk that the crash of a machine left wrong is fetched again
        partial.seek(11 * CHUNK_BYTES)
        partial.write(b"not what was there")
    again = Counting(folder, uri)
    assert again.path(digest).read_bytes() == large.read_bytes()
    assert again.fetched == CHUNK_COUNT - 11
    assert not list(folder.glob("fetching-*"))


def test_processes_of_one_machine_fetch_once_and_share_the_copy(bucket, large, tmp_path):
    uri, _ = bucket
    with large.open("rb") as body:
        digest = Counting(tmp_path / "one", uri).put(body, "large").digest
    processes = [worker(tmp_path / "machine", uri, digest) for _ in range(3)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert sum(lines.count("fetched") for lines in said) == CHUNK_COUNT
    (place,) = {lines[-1] for lines in said}
    path = Path(place.removeprefix("at "))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    with pa.memory_map(str(path)) as mapped:
        assert mapped.size() == large.stat().st_size


def test_who_waits_for_a_fetch_that_is_killed_goes_on_with_it(bucket, large, tmp_path):
    uri, _ = bucket
    with large.open("rb") as body:
        digest = Counting(tmp_path / "one", uri).put(body, "large").digest
    first = worker(tmp_path / "machine", uri, digest)
    assert first.stdout.readline().strip() == "fetched"
    second = worker(tmp_path / "machine", uri, digest)
    time.sleep(0.2)
    killed_after(first, 8)
    lines = second.communicate(timeout=120)[0].splitlines()
    assert lines[-1].startswith("at ")
    assert lines.count("fetched") < CHUNK_COUNT


def test_a_chunk_that_is_damaged_or_missing_in_the_bucket_is_named_and_nothing_is_kept(bucket, large, tmp_path):
    uri, remote = bucket
    with large.open("rb") as body:
        digest = Counting(tmp_path / "one", uri).put(body, "large").digest
    chunk = hashlib.sha256(large.read_bytes()[:CHUNK_BYTES]).hexdigest()
    place = f"cascade/state/chunks/{chunk[:2]}/{chunk[2:]}"
    with remote.open_output_stream(place) as out:
        out.write(b"wrong")
    store = Counting(tmp_path / "reader", uri)
    with pytest.raises(BadArtifact, match=f"chunk {chunk} is another"):
        store.path(digest)
    remote.delete_file(place)
    with pytest.raises(BadArtifact, match="was deleted there"):
        store.path(digest)
    assert not (store.folder / digest[:2] / digest[2:]).exists()
