"""Where records go: a list in memory, a file, the gateway over HTTP, or Kafka. One thread at a time uses each."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from cascade_schemas.codec import Record
from cascade_schemas.recording import RecordStream, packed_records

if TYPE_CHECKING:
    from collections.abc import Coroutine

_TIMEOUT_S = 10.0
BODY_BYTES_LIMIT = 1 << 20  # of one request; the gateway takes twice as much


class DestinationAway(Exception):
    """Not reachable now; the same records may be sent later."""


class DestinationRefused(Exception):
    """Will never take these records as they are: a wrong token, a wrong address. The sentence says which."""


class Destination(Protocol):
    """Takes records in order. Sending the same ones again is harmless: identity is in the events."""

    def send(self, records: Sequence[Record]) -> None:
        """Returns when they are safe. Raises DestinationAway, DestinationRefused."""

    def close(self) -> None: ...


class BadDestination(ValueError):
    """An address of no kind known here."""


def destination_of(address: str, *, trace_id: str, rank: int, token: str = "") -> Destination:
    """The destination an address names. Raises BadDestination."""
    parts = urlsplit(address)
    match parts.scheme:
        case "memory":
            return Memory()
        case "file":
            return File(stream_path(address, rank))
        case "http" | "https":
            return Gateway(address, trace_id=trace_id, rank=rank, token=token)
        case "kafka":
            if not parts.netloc:
                raise BadDestination(f"{address!r} names no broker; write kafka://host:port")
            return Kafka(parts.netloc, KafkaAccess.from_environ(os.environ))
    raise BadDestination(
        f"{address!r} is no destination; write memory://, file:///folder/name, http(s)://host:port or kafka://host:port"
    )


class Memory:
    """Keeps records; `trace` fetches them from the job's processes when it ends."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def send(self, records: Sequence[Record]) -> None:
        self.records.extend(records)

    def close(self) -> None:
        pass


def stream_path(address: str, rank: int) -> Path:
    """file:///folder/name for rank 2: /folder/name.rank2.cascade-trace."""
    path = Path(unquote(urlsplit(address).netloc + urlsplit(address).path))
    if not path.name:
        raise BadDestination(f"{address!r} names no file; write file:///folder/name")
    return path.with_name(f"{path.name.removesuffix('.cascade-trace')}.rank{rank}.cascade-trace")


class File:
    """One record stream per rank, to be imported with `cascade import NAME.rank*.cascade-trace`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: RecordStream | None = None

    def send(self, records: Sequence[Record]) -> None:
        try:
            if self._stream is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = RecordStream(self.path)
            self._stream.append(records, _now_ms())
        except OSError as error:
            raise DestinationAway(f"{self.path.name} cannot be written ({error.strerror or error})") from error

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class Gateway:
    """POST of numbered batches. A batch that was taken but whose answer was lost is sent again under its number."""

    def __init__(self, address: str, *, trace_id: str, rank: int, token: str) -> None:
        parts = urlsplit(address)
        if not parts.hostname:
            raise BadDestination(f"{address!r} names no host; write http://host:port")
        self._host, self._is_secure = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._is_secure else 80)
        self._path = f"{parts.path.rstrip('/')}/api/recordings/{trace_id}/{rank}"
        self._headers = {
            "content-type": "application/vnd.apache.arrow.stream",
            "authorization": f"Bearer {token}",
            "cascade-sender": secrets.token_hex(8),
        }
        self._batch = 0
        self._connection: http.client.HTTPConnection | None = None

    def send(self, records: Sequence[Record]) -> None:
        for part in _parts(records):
            self._post(packed_records(part, _now_ms()))
            self._batch += 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes) -> None:
        try:
            status, answer = self._asked(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise DestinationAway(f"{self._host}:{self._port} does not answer ({_word(error)})") from error
        if status < 300:
            return
        sentence = _sentence(answer) or f"it answered {status}"
        if status in (408, 425, 429) or status >= 500:
            raise DestinationAway(f"{self._host}:{self._port}: {sentence}")
        raise DestinationRefused(f"{self._host}:{self._port} refused: {sentence}")

    def _asked(self, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            if self._is_secure:
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=_TIMEOUT_S, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        self._connection.request("POST", f"{self._path}?batch={self._batch}", body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read(4096)


KAFKA_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
KAFKA_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How a broker lets the job in; the files are PEM. Never part of an address, which is shown and recorded."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> KafkaAccess:
        """From the variables that the programs of a cluster read. Raises BadDestination."""
        names = {one.name: f"CASCADE_KAFKA_{one.name.upper()}" for one in fields(cls)}
        access = cls(**{name: environ[variable] for name, variable in names.items() if environ.get(variable)})
        for name, known in (("protocol", KAFKA_PROTOCOLS), ("mechanism", KAFKA_MECHANISMS)):
            if (value := getattr(access, name)) not in known:
                raise BadDestination(f"{names[name]}={value!r}: must be one of {', '.join(known)}")
        if access.protocol.startswith("SASL") and not (access.username and access.password):
            raise BadDestination(f"{access.protocol} needs CASCADE_KAFKA_USERNAME and CASCADE_KAFKA_PASSWORD")
        return access

    def client(self) -> dict[str, Any]:
        """What an aiokafka client is constructed with. Raises OSError where a file cannot be read."""
        from aiokafka.helpers import create_ssl_context  # noqa: PLC0415 - an extra, found when it is asked for

        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            options["ssl_context"] = create_ssl_context(
                cafile=self.ca_file or None, certfile=self.certificate_file or None, keyfile=self.key_file or None
            )
        if self.protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.mechanism
            options["sasl_plain_username"], options["sasl_plain_password"] = self.username, self.password
        return options


_OPEN_TO_ALL = KafkaAccess()


class Kafka:
    """An idempotent producer on the topic `traces`, in an event loop of its own that only runs while it sends."""

    def __init__(self, bootstrap: str, access: KafkaAccess = _OPEN_TO_ALL) -> None:
        self._bootstrap = bootstrap
        self._access = access
        self._loop = asyncio.new_event_loop()
        self._producer: Any = None

    def send(self, records: Sequence[Record]) -> None:
        try:
            self._run(self._send(records))
        except ImportError as error:
            raise DestinationRefused(
                "kafka:// needs aiokafka; run: pip install 'cascade-profiler[kafka]', or use http://"
            ) from error

    def close(self) -> None:
        if self._producer is not None:
            self._run(self._stopped())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(asyncio.wait_for(work, _TIMEOUT_S * 3))

    async def _send(self, records: Sequence[Record]) -> None:
        from aiokafka import AIOKafkaProducer  # noqa: PLC0415 - an extra, found when it is asked for
        from aiokafka.errors import KafkaError, MessageSizeTooLargeError  # noqa: PLC0415

        try:
            if self._producer is None:
                access = await self._let_in()
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._bootstrap,
                    enable_idempotence=True,
                    acks="all",
                    max_request_size=16 << 20,
                    max_batch_size=1 << 20,  # a request for each record costs more than the record
                    linger_ms=5,
                    request_timeout_ms=int(_TIMEOUT_S * 1000),
                    **access,
                )
                await producer.start()
                self._producer = producer
            sent = [
                await self._producer.send(
                    record.topic,
                    value=record.value,
                    key=record.key.encode(),
                    headers=[(name, value.encode()) for name, value in record.headers.items()],
                )
                for record in records
            ]
            await asyncio.gather(*sent)
        except MessageSizeTooLargeError as error:
            raise DestinationRefused(f"{self._bootstrap}: a record is too large ({_word(error)})") from error
        except (KafkaError, OSError, TimeoutError) as error:
            await self._stopped()
            raise DestinationAway(f"{self._bootstrap} does not answer ({_word(error)})") from error

    async def _let_in(self) -> dict[str, Any]:
        """Knock first: a producer that is not let in says only that it could not connect, and tries again for ever.

        Raises DestinationRefused for what only the user can mend.
        """
        from aiokafka.conn import create_conn  # noqa: PLC0415 - an extra, found when it is asked for
        from aiokafka.errors import AuthenticationFailedError, SaslAuthenticationFailed  # noqa: PLC0415

        try:
            options = self._access.client()
        except OSError as error:
            raise DestinationRefused(f"a file of CASCADE_KAFKA_*_FILE cannot be used: {error}") from error
        *others, last = self._bootstrap.split(",")
        for address in (*others, last):
            host, _, port = address.rpartition(":")
            try:
                connection = await create_conn(host, int(port), request_timeout_ms=int(_TIMEOUT_S * 1000), **options)
            except (AuthenticationFailedError, SaslAuthenticationFailed) as error:
                raise DestinationRefused(
                    f"Kafka at {address} does not accept user {self._access.username!r} by {self._access.mechanism};"
                    " check CASCADE_KAFKA_USERNAME, _PASSWORD and _MECHANISM"
                ) from error
            except Exception as error:
                if isinstance(error.__cause__ or error, ssl.SSLCertVerificationError):
                    raise DestinationRefused(
                        f"the certificate of Kafka at {address} is not to be trusted ({_word(error)});"
                        " set CASCADE_KAFKA_CA_FILE to the authority that signed it"
                    ) from error
                if address is last:
                    raise
            else:
                connection.close()
                break
        return options

    async def _stopped(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await asyncio.wait_for(producer.stop(), 2.0)
        except Exception:  # noqa: BLE001 - a producer that cannot say goodbye is gone all the same
            return


def _parts(records: Sequence[Record]) -> list[list[Record]]:
    """In order, each within the limit of one request; a record that is larger by itself stands alone."""
    parts: list[list[Record]] = [[]]
    held_bytes = 0
    for record in records:
        size = len(record.value) + 512
        if parts[-1] and held_bytes + size > BODY_BYTES_LIMIT:
            parts.append([])
            held_bytes = 0
        parts[-1].append(record)
        held_bytes += size
    return parts if parts[-1] else []


def _sentence(answer: bytes) -> str:
    try:
        said = json.loads(answer)
    except ValueError:
        return ""
    return str(said.get("error", "")) if isinstance(said, dict) else ""


def _word(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
