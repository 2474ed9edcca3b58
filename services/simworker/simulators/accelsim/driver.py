"""A folder of SASS traces through a user's own `accel-sim.out`: one process per kernel, resumed where it was left."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.kernels.sass_traces.kernelslist import BadTrace
from services.runtime.executor import InThreads
from services.simworker.simulators.accelsim.failures import Failure, failure_of
from services.simworker.simulators.accelsim.output import KernelBlock, Output
from services.simworker.simulators.accelsim.preflight import obstacle, prepare
from services.simworker.simulators.accelsim.process import Limits, run
from services.simworker.simulators.sass.kept import read_or_recall, sweep
from services.simworker.simulators.sass.machine import Machine, machine_of
from services.simworker.simulators.sass.options import OPTION_FILES, read_options

Report = dict[str, Any]
OnLine = Callable[[str, str], None]
"""Called with a kernel's file name and a line of its simulator, from the thread that reads it."""

DRIVER_VERSION = 1  # of what a kept result means
OVERRIDES = {
    # Launch latency is simulated cycle by cycle and tells nothing: the same kernel cycles come without it.
    "gpgpu_kernel_launch_latency": "0",
    "trace_enabled": "1",
    "trace_components": "LIVENESS",
    "liveness_message_freq": "1",
}
_PROBE_S = 60.0


class NotUsable(ValueError):
    """The setting names no Accel-Sim that runs, or a config that it refuses; the message is the sentence to show."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What `probe` learned of a binary and a config together."""

    binary: Path
    binary_digest: str
    version: str
    is_version_2: bool
    options: dict[str, str] = field(hash=False)


class AccelSim:
    """One binary and one config. Methods may be called from several threads."""

    def __init__(
        self,
        binary: Path,
        config: Path,
        home: Path,
        *,
        environ: Mapping[str, str],
        now_s: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        """`home` keeps results and logs. Raises NotUsable, BadConfig."""
        self._binary = binary
        self._config = config.resolve()
        self._home = home
        self._environ = environ
        self._now_s = now_s
        self._limits = limits or Limits()
        self._options = read_options(config)
        self.machine: Machine = machine_of(self._options)
        self.installation = self._probe()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End every process within a poll's time; what is finished stays kept."""
        self._cancelled.set()

    def simulate_all(self, paths: list[Path], process_count: int, on_line: OnLine | None = None) -> list[Report]:
        """One report per kernel in the order of `paths`; a failed one has `error` and `failure`, and no cycles."""
        executor = InThreads(process_count, waiting_limit=len(paths))
        try:
            started = [executor.start(self.simulate, path, on_line) for path in paths]
            reports = [execution.result() for execution in started]
        except BaseException:  # an interrupt: leaving waits for what runs, so it has to end first
            self.cancel()
            raise
        finally:
            executor.close()
        sweep(self._home / "sass")
        return reports

    def simulate(self, path: Path, on_line: OnLine | None = None) -> Report:
        try:
            trace = read_or_recall(path, self._home / "sass")
        except BadTrace as error:
            return _failed(path, "", Failure("cut_trace", str(error)), str(error))  # which names the file
        name = trace.header.name
        if self._cancelled.is_set():
            return _failed(path, name, Failure("cancelled", "was cancelled before it began"))
        found = obstacle(trace, self.machine, is_version_2=self.installation.is_version_2)
        if found:
            return _failed(path, name, found)
        key = self._key(path)
        kept = self._kept(key)
        if kept is not None:
            return kept | {"file": path.name, "is_cached": True}
        self._home.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="accelsim-", dir=self._home))
        try:
            traces = folder / "traces"
            traces.mkdir()
            changes = prepare(path, trace, traces, is_version_2=self.installation.is_version_2)
            output = Output()

            def hear(line: str) -> None:
                output.feed(line)
                if on_line:
                    on_line(path.name, line)

            ran = run(
                self._command("traces/kernelslist.g"),
                folder,
                self._limits,
                environ=self._environ,
                now_s=self._now_s,
                on_line=hear,
                is_cancelled=self._cancelled.is_set,
            )
            output.close()
            log = self._keep_log(key, folder)
            failure = failure_of(ran.ended, output, 1)
            if failure:
                return _failed(path, name, failure) | {"log": log, "cpu_seconds": round(ran.cpu_seconds, 3)}
            report = _kernel_report(path, name, output.kernels[0]) | {
                "changes": list(changes),
                "cpu_seconds": round(ran.cpu_seconds, 3),
                "peak_rss_bytes": ran.peak_rss_bytes,
                "log": log,
            }
            self._keep(key, report)
            return report | {"is_cached": False}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _probe(self) -> Installation:
        """An empty list: in a second it tells whether the binary runs, its version, and whether the config fits."""
        if not self._binary.is_file() or not os.access(self._binary, os.X_OK):
            raise NotUsable(f"CASCADE_ACCELSIM={self._binary}: is no program; give the path of an accel-sim.out")
        self._home.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="accelsim-probe-", dir=self._home))
        output = Output()
        try:
            (folder / "kernelslist.g").write_text("")
            ran = run(
                self._command("./kernelslist.g"),
                folder,
                Limits(_PROBE_S, self._limits.memory_bytes),
                environ=self._environ,
                now_s=self._now_s,
                on_line=output.feed,
            )
            output.close()
        except OSError as error:
            raise NotUsable(f"CASCADE_ACCELSIM={self._binary}: does not start ({error.strerror})") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failure = failure_of(ran.ended, output, 0)
        if failure:
            raise NotUsable(f"Accel-Sim {failure.sentence} ({self._config})")
        with self._binary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Installation(
            binary=self._binary,
            binary_digest=digest,
            version=output.version,
            # 2.0 has the options of a chip of two halves; it says 4.x of itself as 1.3 does.
            is_version_2="gpgpu_n_chiplet_partition" in output.options,
            options=output.options,
        )

    def _command(self, listed: str) -> list[str]:
        command = [str(self._binary.resolve()), "-trace", listed]
        for name in OPTION_FILES:
            command += ["-config", str(self._config / name)]
        for name, value in OVERRIDES.items():
            command += [f"-{name}", value]
        return command

    def _key(self, path: Path) -> str:
        """Of all that fixes the cycles: the trace's bytes, the options in force, the binary."""
        with path.open("rb") as file:
            trace_digest = hashlib.file_digest(file, "sha256").hexdigest()
        options = json.dumps(self._options | OVERRIDES, sort_keys=True)
        parts = (str(DRIVER_VERSION), trace_digest, options, self.installation.binary_digest)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _kept(self, key: str) -> Report | None:
        path = self._home / "accelsim" / f"{key}.json"
        try:
            kept = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return None  # not there, or damaged: simulated again
        return kept if isinstance(kept, dict) else None

    def _keep(self, key: str, report: Report) -> None:
        path = self._home / "accelsim" / f"{key}.json"
        partial = path.with_suffix(f".{threading.get_ident()}.partial")
        partial.write_text(json.dumps(report))
        partial.replace(path)

    def _keep_log(self, key: str, folder: Path) -> str:
        """The whole output, packed, under the result's key; of a failure the last attempt's."""
        kept = self._home / "accelsim"
        kept.mkdir(exist_ok=True)
        name = f"{key}.log.gz"
        partial = kept / f"{key}.{threading.get_ident()}.partial"
        with (folder / "stdout.log").open("rb") as source, gzip.open(partial, "wb", compresslevel=3) as out:
            shutil.copyfileobj(source, out)
            out.write(b"\n--- standard error ---\n")
            with (folder / "stderr.log").open("rb") as errors:
                shutil.copyfileobj(errors, out)
        partial.replace(kept / name)
        return name


def _failed(path: Path, name: str, failure: Failure, error: str = "") -> Report:
    return {
        "name": name,
        "file": path.name,
        "cycles": None,
        "failure": failure.code,
        "error": error or f"{path.name}: Accel-Sim {failure.sentence}",
    }


def _kernel_report(path: Path, name: str, block: KernelBlock) -> Report:
    """In the shape of the built-in simulator's report, as far as Accel-Sim counts the same."""
    count = {key: int(value) for key, value in block.counters.items() if not key.startswith("gpu_ipc")}
    core = "Total_core_cache_stats_breakdown"
    l2 = "L2_cache_stats_breakdown"
    return {
        "name": name,
        "file": path.name,
        "cycles": count["gpu_sim_cycle"],
        "warp_instructions": count.get("gpgpu_n_tot_w_icount", 0),
        "thread_instructions": count.get("gpu_sim_insn", 0),
        "ipc": block.counters.get("gpu_ipc", 0.0),
        "ctas_per_sm": block.ctas_per_sm,
        "limited_by": block.limited_by,
        "l1_read_sectors": count.get(f"{core}[GLOBAL_ACC_R][TOTAL_ACCESS]", 0),
        "l1_read_hits": count.get(f"{core}[GLOBAL_ACC_R][HIT]", 0),
        "l1_write_sectors": count.get(f"{core}[GLOBAL_ACC_W][TOTAL_ACCESS]", 0),
        "l2_read_sectors": count.get(f"{l2}[GLOBAL_ACC_R][TOTAL_ACCESS]", 0),
        "l2_read_hits": count.get(f"{l2}[GLOBAL_ACC_R][HIT]", 0),
        "l2_write_sectors": count.get(f"{l2}[GLOBAL_ACC_W][TOTAL_ACCESS]", 0),
        "l2_write_hits": count.get(f"{l2}[GLOBAL_ACC_W][HIT]", 0),
        "dram_read_bytes": count.get("total dram reads", 0) * 32,
        "dram_write_bytes": count.get("total dram writes", 0) * 32,
        "bank_conflict_cycles": count.get("gpgpu_n_shmem_bkconflict", 0),
    }
