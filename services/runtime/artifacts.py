"""Large bodies, stored once under the SHA-256 of their content; events carry only the digest."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from cascade_schemas.events import ArtifactRef

_CHUNK_BYTES = 1 << 20


class UnknownArtifact(LookupError):
    """No artifact has this digest; it was never stored here or was deleted."""


class UploadTooLarge(ValueError):
    """The body is larger than the store accepts."""


class ArtifactStore:
    """A local folder: `ab/cdef…` per artifact, written whole under a temporary name and then renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, body: BinaryIO, name: str, *, bytes_limit: int | None = None) -> ArtifactRef:
        """Store a body read to its end. Raises UploadTooLarge, and leaves nothing behind."""
        whole, size_bytes = hashlib.sha256(), 0
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix="incoming-")
        try:
            with os.fdopen(handle, "wb") as out:
                while chunk := body.read(_CHUNK_BYTES):
                    size_bytes += len(chunk)
                    if bytes_limit is not None and size_bytes > bytes_limit:
                        raise UploadTooLarge(f"{name} is larger than the limit of {bytes_limit} bytes")
                    whole.update(chunk)
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
            digest = whole.hexdigest()
            path = self._path(digest)
            path.parent.mkdir(exist_ok=True)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return ArtifactRef(digest=digest, name=Path(name).name, size_bytes=size_bytes)

    def get_result(self, key: str) -> pa.RecordBatch | None:
        """A result kept under a key; None where there is none, or where what is there cannot be read."""
        path = self._path(key, self.folder / "results")
        try:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                return reader.get_batch(0)
        except FileNotFoundError:
            return None
        except (pa.ArrowException, OSError, IndexError):
            path.unlink(missing_ok=True)  # damaged: simulated again, kept again
            return None

    def put_result(self, key: str, rows: pa.RecordBatch) -> None:
        """Keep a result under its key; whole or not at all."""
        path = self._path(key, self.folder / "results")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix="incoming-")
        os.close(handle)
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_batch(rows)
        Path(temporary).replace(path)

    def path(self, digest: str) -> Path:
        """Where the artifact lies; readers may map it. Raises UnknownArtifact."""
        path = self._path(digest)
        if not path.is_file():
            raise UnknownArtifact(f"no artifact {digest}")
        return path

    def named(self, artifacts: Sequence[ArtifactRef], folder: Path) -> list[Path]:
        """Links to artifacts under their original names, each in a folder of its own: names may be equal."""
        paths = []
        for index, artifact in enumerate(artifacts):
            place = folder / str(index)
            place.mkdir()
            path = place / Path(artifact.name).name
            path.symlink_to(self.path(artifact.digest))
            paths.append(path)
        return paths

    def _path(self, digest: str, folder: Path | None = None) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise UnknownArtifact(f"{digest!r} is not a SHA-256 digest")
        return (folder or self.folder) / digest[:2] / digest[2:]


def open_artifacts(folder: Path, uri: str) -> ArtifactStore:
    """The store that the settings name: a bucket behind the folder, or the folder alone where `uri` is empty."""
    if not uri:
        return ArtifactStore(folder)
    from services.runtime.remote_artifacts import RemoteArtifactStore  # noqa: PLC0415 - file systems load slowly

    return RemoteArtifactStore(folder, uri)
