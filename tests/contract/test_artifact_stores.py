"""A folder and a bucket keep artifacts alike: whole, by digest, found by all."""

import hashlib
import io
import os

import pyarrow as pa
import pytest

from services.runtime.artifacts import UnknownArtifact, UploadTooLarge, open_artifacts
from services.runtime.remote_artifacts import BadArtifact

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
