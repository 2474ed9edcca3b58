"""The engine in another process on this machine: the same questions over REST."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cascade_schemas.events import Refine

from services.runtime.engine import ImportOptions, OnProgress, Refused, Report, SqlRows

_POLL_S = 0.2
_TIMEOUT = httpx.Timeout(60.0, connect=2.0)


@dataclass(frozen=True, slots=True)
class ServerFile:
    """CASCADE_HOME/server.json: who serves this home, and how to ask it."""

    url: str
    token: str
    pid: int

    def write(self, home: Path) -> None:
        """Readable by the owner only from its first byte on."""
        path = home / "server.json"
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            json.dump({"url": self.url, "token": self.token, "pid": self.pid}, out)


def read_server_file(home: Path) -> ServerFile | None:
    """None where nobody serves, or where whoever did is gone."""
    try:
        found = json.loads((home / "server.json").read_text())
        server = ServerFile(str(found["url"]), str(found["token"]), int(found["pid"]))
        os.kill(server.pid, 0)
    except (FileNotFoundError, ProcessLookupError, ValueError, KeyError, TypeError):
        return None
    except PermissionError:
        return server  # alive, another user's
    return server


def left_token(home: Path) -> str:
    """The token of a server that ended without removing its file; "" where there is none."""
    try:
        return str(json.loads((home / "server.json").read_text())["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


class RemoteEngine:
    """Speaks to the process that `cascade serve` started."""

    def __init__(self, server: ServerFile) -> None:
        headers = {"Authorization": f"Bearer {server.token}"}
        self._http = httpx.Client(base_url=server.url, headers=headers, timeout=_TIMEOUT, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def import_files(self, paths: Sequence[Path], options: ImportOptions) -> Report:
        with ExitStack() as stack:
            files = [("files", (path.name, stack.enter_context(path.open("rb")))) for path in paths]
            fields = {
                "name": options.name,
                "model": options.model.model_dump_json() if options.model else "",
                "source_gpu": options.source_gpu or "",
                "prompts": ",".join(map(str, options.prompts)),
                "routing": options.routing,
            }
            trace_id = self._ask("POST", "/api/traces", data=fields, files=files, timeout=None)["trace_id"]
        while (report := self._ask("GET", f"/api/traces/{trace_id}"))["status"] == "importing":
            time.sleep(_POLL_S)
        if report["status"] == "rejected":
            raise Refused(report["reason"])
        return report

    def start_run(
        self, trace_id: str, gpus: Sequence[str], simulator: str, name: str = "", refine: Refine | None = None
    ) -> str:
        body: Report = {"trace_id": trace_id, "gpus": list(gpus), "simulator": simulator, "name": name}
        if refine is not None:
            body["refine"] = refine.model_dump()
        return str(self._ask("POST", "/api/runs", json=body)["run_id"])

    def wait_run(self, run_id: str, on_progress: OnProgress | None = None) -> Report:
        while True:
            progress = self._ask("GET", f"/api/runs/{run_id}/progress")
            if on_progress is not None:
                on_progress(progress["configs"])
            if progress["status"] != "running":
                return self.run_report(run_id)
            time.sleep(_POLL_S)

    def cancel_run(self, run_id: str) -> None:
        self._ask("POST", f"/api/runs/{run_id}/cancel")

    def traces(self) -> list[Report]:
        return list(self._ask("GET", "/api/traces")["traces"])

    def trace_report(self, trace_id: str) -> Report:
        return self._ask("GET", f"/api/traces/{trace_id}")

    def runs(self) -> list[Report]:
        return list(self._ask("GET", "/api/runs")["runs"])

    def run_report(self, run_id: str) -> Report:
        return self._ask("GET", f"/api/runs/{run_id}")

    def what_if(self, trace_id: str, config: str) -> Report:
        return self._ask("POST", "/api/what-if", json={"trace": trace_id, "config": config})

    def verify_run(self, run_id: str) -> Report:
        return self._ask("POST", f"/api/runs/{run_id}/verify", timeout=None)

    def events(self, run_id: str) -> Iterator[Report]:
        position = 0
        while True:
            page = self._ask("GET", f"/api/runs/{run_id}/events?from={position}")["events"]
            yield from page
            if not page:
                return
            position = page[-1]["position"] + 1

    def sql(self, statement: str, row_limit: int) -> SqlRows:
        found = self._ask("POST", "/api/sql", json={"sql": statement, "limit": row_limit})
        names = found["names"]
        return SqlRows(names, [dict(zip(names, row, strict=True)) for row in found["rows"]], found["is_truncated"])

    def export_perfetto(self, run_id: str, path: Path) -> int:
        partial = path.with_name(f".{path.name}.partial")
        try:
            with self._http.stream("GET", f"/api/runs/{run_id}/perfetto", timeout=None) as response:
                if response.is_error:
                    response.read()
                    raise Refused(_sentence(response))
                with partial.open("wb") as out:
                    for chunk in response.iter_bytes():
                        out.write(chunk)
                count = int(response.headers["x-event-count"])
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return count

    def _ask(self, method: str, path: str, **arguments: Any) -> Report:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise Refused(f"the server at {self._http.base_url} does not answer ({type(error).__name__})") from error
        if response.is_error:
            raise Refused(_sentence(response))
        found: Report = response.json()
        return found


def _sentence(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code} to {response.request.url.path}"
