"""Files of a tracer on their way to the artifact store while the job still writes the next ones.

One file for each distinct launch: what repeats an earlier one is named in the list and deleted. What was sent stays in
the folder until the disk cap asks for room.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

from cascade_profiler.destinations import BadDestination, DestinationAway, DestinationRefused
from cascade_profiler.nvbit import folder_bytes, signature_of
from cascade_profiler.saying import say

LIST_NAME = "kernelslist"
_TIMEOUT_S = 60.0
_RETRY_FIRST_S, _RETRY_LIMIT_S = 1.0, 30.0
_CHUNK_BYTES = 1 << 20


class FileRefused(DestinationRefused):
    """One file that will never be taken, because it is too large; others may be."""


class Sent(NamedTuple):
    """A file that has arrived."""

    name: str
    digest: str


class Store(Protocol):
    """Keeps files by their digest. Sending one again is harmless."""

    def send(self, path: Path, name: str) -> Sent:
        """Returns when the file is safe, and whole. Raises DestinationAway, DestinationRefused, FileRefused."""

    def finish(self, files: Sequence[Sent], job: Job) -> str:
        """All files are there; what the user is told, one sentence. Raises as `send`."""


class Job(NamedTuple):
    """What the files are of, as an upload says it."""

    name: str
    model: str = ""
    source_gpu: str = ""


def store_of(address: str, token: str) -> Store:
    """The store behind a destination. Raises BadDestination."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.hostname:
        return GatewayStore(address, token)
    path = unquote(parts.netloc + parts.path)
    if parts.scheme == "file" and Path(path).name:
        return FolderStore(Path(f"{path}.sass"))
    raise BadDestination(f"{address!r} keeps no files; write http(s)://host:port or file:///folder/name")


class FolderStore:
    """A folder next to a recording: `name.sass`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def send(self, path: Path, name: str) -> Sent:
        partial = self.folder / f".{name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)
            try:
                os.link(path, partial)  # no second copy on one disk
            except OSError:
                shutil.copyfile(path, partial)
            partial.replace(self.folder / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise DestinationAway(f"{self.folder.name} cannot be written ({error.strerror or error})") from error
        return Sent(name, _digest(path))

    def finish(self, files: Sequence[Sent], job: Job) -> str:  # noqa: ARG002 - the list tells what was launched
        return f"import it with: cascade import {self.folder}"


class GatewayStore:
    """PUT of each file under its digest, and one POST that asks for their import."""

    def __init__(self, address: str, token: str) -> None:
        parts = urlsplit(address)
        self._host, self._is_secure = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._is_secure else 80)
        self._path = f"{parts.path.rstrip('/')}/api"
        self._headers = {"authorization": f"Bearer {token}"}
        self._is_admitted = False

    def send(self, path: Path, name: str) -> Sent:
        if not self._is_admitted:
            self._asked("GET", "about", None, {})  # a refusal in the middle of a large body can go unheard
            self._is_admitted = True
        digest = _digest(path)
        headers = {"content-type": "application/octet-stream", "content-length": str(path.stat().st_size)}
        with path.open("rb") as body:
            self._asked("PUT", f"artifacts/{digest}?name={quote(name, safe='')}", body, headers)
        return Sent(name, digest)

    def finish(self, files: Sequence[Sent], job: Job) -> str:
        body = {**job._asdict(), "artifacts": [{"digest": one.digest, "name": one.name} for one in files]}
        answer = self._asked("POST", "imports", json.dumps(body).encode(), {"content-type": "application/json"})
        return (
            f"trace {answer['trace_id']}; simulate it with: cascade run {answer['trace_id']} --simulator sass --gpu ID"
        )

    def _asked(self, method: str, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        connection = self._connection()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read everything
                connection.request(method, f"{self._path}/{path}", body, {**self._headers, **headers})
            answer = connection.getresponse()
            status, text = answer.status, answer.read(1 << 16)
        except (OSError, http.client.HTTPException) as error:
            raise DestinationAway(
                f"{self._host}:{self._port} does not answer ({error or type(error).__name__})"
            ) from error
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        if status < 300 and isinstance(found, dict):
            return found
        sentence = str(found.get("error", "")) if isinstance(found, dict) else ""
        said = f"{self._host}:{self._port}: {sentence or f'it answered {status}'}"
        if status in (408, 425, 429) or status >= 500:
            raise DestinationAway(said)
        raise FileRefused(said) if status == 413 else DestinationRefused(said)

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)


@dataclass
class Shipment:
    """What a folder's finished files become. `store` None: they stay where they are."""

    folder: Path
    store: Store | None
    bytes_limit: int
    now_s: Callable[[], float] = time.monotonic
    repeated_count: int = 0
    names: list[str] = field(default_factory=list)  # in order of launch; a repeated launch has the first one's
    sent: dict[str, Sent] = field(default_factory=dict)
    refused: str = ""
    left_out: list[Path] = field(default_factory=list)  # that the store will never take
    _first: dict[tuple[str, ...], str] = field(default_factory=dict)  # signature -> name
    _waiting: deque[Path] = field(default_factory=deque)
    _deletable: deque[Path] = field(default_factory=deque)
    _retry_at_s: float = 0.0
    _retry_s: float = 0.0

    def take(self, path: Path) -> bool:
        """A file is finished; False where it repeats an earlier launch, and is gone."""
        signature = signature_of(path)
        first = self._first.setdefault(signature, path.name)
        self.names.append(first)
        if first != path.name:
            self.repeated_count += 1
            path.unlink()
            return False
        self._waiting.append(path)
        return True

    def pump(self) -> None:
        """Send what waits, as far as the store takes it, and make room where the cap asks for it."""
        while self.store is not None and self._waiting and not self.refused and self.now_s() >= self._retry_at_s:
            path = self._waiting[0]
            try:
                self.sent[path.name] = self.store.send(path, path.name)
            except DestinationAway as error:
                self._retry_s = min(max(2 * self._retry_s, _RETRY_FIRST_S), _RETRY_LIMIT_S)
                self._retry_at_s = self.now_s() + self._retry_s
                say(f"{error}; files wait in {self.folder} and are sent when it is back")
                break
            except FileRefused as error:
                say(f"{path.name} is left out: {error}")
                self.left_out.append(self._waiting.popleft())
                continue
            except DestinationRefused as error:
                self.refused = str(error)
                say(f"{error}; files stay in {self.folder}")
                break
            self._retry_s = 0.0
            self._deletable.append(self._waiting.popleft())
        while self._deletable and folder_bytes(self.folder) > self.bytes_limit:
            self._deletable.popleft().unlink(missing_ok=True)

    @property
    def is_full(self) -> bool:
        """Whether the folder holds more than it may although all that can be deleted is: the job is to be stopped."""
        return folder_bytes(self.folder) > self.bytes_limit

    @property
    def unsent_count(self) -> int:
        return len(self._waiting)

    def finish(self, job: Job, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> str:
        """Send the rest and the list of launches; what the user is told, one sentence."""
        deadline_s = self.now_s() + timeout_s
        self.pump()
        while self._waiting and self.store is not None and not self.refused and self.now_s() < deadline_s:
            sleep(0.2)
            self.pump()
        if self.store is None:
            self._rewrite_list()
            return f"simulate it with: cascade sass {self.folder} --config CONFIG_DIR"
        if self._waiting:
            return f"{len(self._waiting)} files were not sent; they are in {self.folder}: cascade import {self.folder}"
        listed = self.folder / f".{LIST_NAME}.sent"
        listed.write_text("".join(f"{name}\n" for name in self.names if name in self.sent), encoding="utf-8")
        try:
            files = [*self.sent.values(), self.store.send(listed, LIST_NAME)]
            return self.store.finish(files, job)
        except (DestinationAway, DestinationRefused) as error:
            return f"{error}; all files are sent but not imported"
        finally:
            listed.unlink(missing_ok=True)

    def _rewrite_list(self) -> None:
        """The tracer's list names the files of repeated launches too, which are gone."""
        places = {path.name: path.relative_to(self.folder) for path in self._waiting}
        text = "".join(f"{places[name]}\n" for name in self.names)
        (self.folder / LIST_NAME).write_text(text, encoding="utf-8")


def _digest(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as body:
        while chunk := body.read(_CHUNK_BYTES):
            whole.update(chunk)
    return whole.hexdigest()
