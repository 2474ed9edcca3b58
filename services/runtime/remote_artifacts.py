"""Artifacts in S3, or wherever pyarrow's file systems reach, with a folder of this machine in front.

What is put goes to both; what is asked for comes from the folder, and the first time from the bucket, verified by its
digest. All workers of a machine share the folder, and so one memory-mapped copy of each trace.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from cascade_schemas.events import ArtifactRef
from pyarrow import fs

from services.runtime.artifacts import ArtifactStore, UnknownArtifact

_CHUNK_BYTES = 8 << 20


class BadArtifact(OSError):
    """What lies in the bucket under a digest has another one."""


class RemoteArtifactStore(ArtifactStore):
    """`uri`: s3://bucket/prefix; with `?endpoint_override=host:port&scheme=http&region=…` for one other than AWS's.

    Credentials are the environment's, as AWS's own tools read them. Raises OSError where the bucket cannot be reached.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        super().__init__(folder)
        self._remote, root = fs.FileSystem.from_uri(uri)
        self._root = root.rstrip("/")

    def put(self, body: BinaryIO, name: str, *, bytes_limit: int | None = None) -> ArtifactRef:
        artifact = super().put(body, name, bytes_limit=bytes_limit)
        place = self._place(artifact.digest)
        if self._remote.get_file_info(place).type == fs.FileType.NotFound:
            self._upload(super().path(artifact.digest), place)
        return artifact

    def path(self, digest: str) -> Path:
        try:
            return super().path(digest)
        except UnknownArtifact:
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
        except (FileNotFoundError, pa.ArrowInvalid, IndexError):
            return None  # not there, or damaged: simulated again, kept again
        super().put_result(key, rows)
        return rows

    def put_result(self, key: str, rows: pa.RecordBatch) -> None:
        super().put_result(key, rows)
        self._upload(self._path(key, self.folder / "results"), self._place(key, "results/"))

    def _place(self, digest: str, kind: str = "") -> str:
        self._path(digest)  # refuses what is no digest
        return f"{self._root}/{kind}{digest[:2]}/{digest[2:]}"

    def _upload(self, path: Path, place: str) -> None:
        """An object appears whole or not at all: its last part completes it."""
        with path.open("rb") as source, self._remote.open_output_stream(place) as out:
            while chunk := source.read(_CHUNK_BYTES):
                out.write(chunk)

    def _fetch(self, digest: str) -> None:
        """Into the folder, under a temporary name until its digest is seen to be the one asked for."""
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix="incoming-")
        whole = hashlib.sha256()
        try:
            with os.fdopen(handle, "wb") as out, self._remote.open_input_stream(self._place(digest)) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    whole.update(chunk)
                    out.write(chunk)
            if whole.hexdigest() != digest:
                raise BadArtifact(f"artifact {digest} is damaged in its bucket: its content has another digest")
            path = self._path(digest)
            path.parent.mkdir(exist_ok=True)
            Path(temporary).replace(path)
        except FileNotFoundError as error:
            raise UnknownArtifact(f"no artifact {digest}") from error
        finally:
            Path(temporary).unlink(missing_ok=True)
