"""Artifacts in S3, or wherever pyarrow's file systems reach, with a folder of this machine in front.

What is put goes to both; what is asked for comes from the folder, and the first time from the bucket, verified by its
digest. All workers of a machine share the folder, and so one memory-mapped copy of each trace: one of them fetches it
while the others wait.

A large body lies in the bucket as chunks, each under its own digest, and a list of them that is written last: without
its list nothing is there. Whoever is interrupted, in either direction, goes on after the last chunk that is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import pyarrow as pa
from cascade_schemas.events import ArtifactRef
from pyarrow import fs

from services.runtime.artifacts import ArtifactStore, UnknownArtifact

CHUNK_BYTES = 16 << 20
_READ_BYTES = 8 << 20


class BadArtifact(OSError):
    """What lies in the bucket under a digest has another one."""


class RemoteArtifactStore(ArtifactStore):
    """`uri`: s3://bucket/prefix; with `?endpoint_override=host:port&scheme=http&region=…` for one other than AWS's.

    Credentials are the environment's, as AWS's own tools read them. Raises OSError where the bucket cannot be reached.
    """

    def __init__(self, folder: Path, uri: str, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`chunk_bytes`: larger bodies are stored in chunks of this size."""
        super().__init__(folder)
        self._chunk_bytes = chunk_bytes
        self._remote, root = fs.FileSystem.from_uri(uri)
        self._root = root.rstrip("/")

    def put(self, body: BinaryIO, name: str, *, bytes_limit: int | None = None) -> ArtifactRef:
        artifact = super().put(body, name, bytes_limit=bytes_limit)
        path = super().path(artifact.digest)
        if artifact.size_bytes > self._chunk_bytes:
            self._upload_chunks(path, artifact)
        elif not self._is_there(self._place(artifact.digest)):
            self._upload(path, self._place(artifact.digest))
        return artifact

    def path(self, digest: str) -> Path:
        try:
            return super().path(digest)
        except UnknownArtifact:
            with self._alone(digest):
                if not self._path(digest).is_file():  # else another had it fetched while this one waited
                    self._fetch(digest)
            return super().path(digest)

    def get_result(self, key: str) -> pa.RecordBatch | None:
        found = super().get_result(key)
        if found is not None:
            return found
        try:
            with self._remote.open_input_stream(self._place(key, "results/")) as source:
                content = source.read()
            rows = pa.ipc.open_file(pa.BufferReader(content)).get_batch(0)
        except (FileNotFoundError, pa.ArrowException, IndexError):
            return None  # not there, or damaged: simulated again, kept again
        super().put_result(key, rows)
        return rows

    def put_result(self, key: str, rows: pa.RecordBatch) -> None:
        super().put_result(key, rows)
        self._upload(self._path(key, self.folder / "results"), self._place(key, "results/"))

    def _place(self, digest: str, kind: str = "") -> str:
        self._path(digest)  # refuses what is no digest
        return f"{self._root}/{kind}{digest[:2]}/{digest[2:]}"

    def _is_there(self, place: str) -> bool:
        return bool(self._remote.get_file_info(place).type == fs.FileType.File)

    # --- into the bucket --------------------------------------------------------------------------------------

    def _upload(self, path: Path, place: str) -> None:
        """An object appears whole or not at all: its last part completes it."""
        with path.open("rb") as source, self._remote.open_output_stream(place) as out:
            while chunk := source.read(_READ_BYTES):
                out.write(chunk)

    def _upload_chunks(self, path: Path, artifact: ArtifactRef) -> None:
        """Chunks that are there already, from an attempt that was interrupted or from another body, are left."""
        listed = self._place(artifact.digest, "lists/")
        if self._is_there(listed):
            return
        chunks = []
        with path.open("rb") as source:
            while chunk := source.read(self._chunk_bytes):
                digest = hashlib.sha256(chunk).hexdigest()
                self._upload_chunk(digest, chunk)
                chunks.append({"digest": digest, "size_bytes": len(chunk)})
        with self._remote.open_output_stream(listed) as out:
            out.write(json.dumps({"size_bytes": artifact.size_bytes, "chunks": chunks}).encode())

    def _upload_chunk(self, digest: str, chunk: bytes) -> None:
        place = self._place(digest, "chunks/")
        if not self._is_there(place):
            with self._remote.open_output_stream(place) as out:
                out.write(chunk)

    # --- out of it --------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self, digest: str) -> Iterator[None]:
        """The one process of this machine that fetches the artifact; who is killed holds nobody up."""
        folder = self._path(digest).parent
        folder.mkdir(exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _fetch(self, digest: str) -> None:
        chunks = self._chunks_of(digest)
        if chunks is None:
            self._fetch_whole(digest)
        else:
            self._fetch_chunks(digest, chunks)

    def _chunks_of(self, digest: str) -> list[tuple[str, int]] | None:
        """(digest, bytes) of each chunk in order; None where the artifact was stored as one object, or not at all."""
        try:
            with self._remote.open_input_stream(self._place(digest, "lists/")) as source:
                listed = json.loads(source.read())
            return [(str(chunk["digest"]), int(chunk["size_bytes"])) for chunk in listed["chunks"]]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise BadArtifact(f"artifact {digest} is damaged in its bucket: its list of chunks is none") from error

    def _fetch_whole(self, digest: str) -> None:
        """Into the folder, under a temporary name until its digest is seen to be the one asked for."""
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix="incoming-")
        whole = hashlib.sha256()
        try:
            with os.fdopen(handle, "wb") as out, self._remote.open_input_stream(self._place(digest)) as source:
                while chunk := source.read(_READ_BYTES):
                    whole.update(chunk)
                    out.write(chunk)
            self._reveal(Path(temporary), digest, whole.hexdigest())
        except FileNotFoundError as error:
            raise UnknownArtifact(f"no artifact {digest}") from error
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _fetch_chunks(self, digest: str, chunks: list[tuple[str, int]]) -> None:
        """Go on with what an interrupted fetch has left, after the last chunk of it that is what it should be."""
        partial = self.folder / f"fetching-{digest}"
        partial.touch()
        whole = hashlib.sha256()
        with partial.open("r+b") as out:
            kept = _whole_chunks(out, chunks, whole)
            out.seek(sum(size for _, size in chunks[:kept]))
            out.truncate()
            for chunk_digest, size in chunks[kept:]:
                chunk = self._fetch_chunk(chunk_digest)
                if len(chunk) != size or hashlib.sha256(chunk).hexdigest() != chunk_digest:
                    raise BadArtifact(f"artifact {digest} is damaged in its bucket: chunk {chunk_digest} is another")
                whole.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        try:
            self._reveal(partial, digest, whole.hexdigest())
        finally:
            partial.unlink(missing_ok=True)

    def _fetch_chunk(self, digest: str) -> bytes:
        try:
            with self._remote.open_input_stream(self._place(digest, "chunks/")) as source:
                content: bytes = source.read()
                return content
        except FileNotFoundError as error:
            raise BadArtifact(f"chunk {digest} is missing in the bucket: it was deleted there") from error

    def _reveal(self, temporary: Path, digest: str, found: str) -> None:
        if found != digest:
            raise BadArtifact(f"artifact {digest} is damaged in its bucket: its content has another digest")
        path = self._path(digest)
        path.parent.mkdir(exist_ok=True)
        temporary.replace(path)


def _whole_chunks(partial: IO[bytes], chunks: list[tuple[str, int]], whole: hashlib._Hash) -> int:
    """How many chunks at the file's beginning are what they should be; they are added to `whole`."""
    for count, (digest, size) in enumerate(chunks):
        chunk = partial.read(size)
        if len(chunk) != size or hashlib.sha256(chunk).hexdigest() != digest:
            return count
        whole.update(chunk)
    return len(chunks)
