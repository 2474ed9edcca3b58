"""Why a process of Accel-Sim gave no answer: its exit code lies (0 for a trace it cannot read), its output does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from services.simworker.simulators.accelsim.output import Output

EndedBy = Literal["itself", "time limit", "cancelled"]
Code = Literal[
    "bad_config",
    "bad_list",
    "barrier_values",
    "cancelled",
    "cta_too_large",
    "cut_trace",
    "cycle_limit",
    "deadlock",
    "incomplete_grid",
    "memory_limit",
    "missing_trace",
    "missing_unit",
    "nothing_simulated",
    "partition_hashing",
    "replay_deadlock",
    "time_limit",
    "unknown",
    "unknown_opcode",
    "unsupported_binary_version",
    "unsupported_file",
    "unsupported_text_version",
]


@dataclass(frozen=True, slots=True)
class Failure:
    """`sentence` names what was wrong and the way out."""

    code: Code
    sentence: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. `exit_code` is a shell's: 128 + signal where one ended it."""

    exit_code: int
    by: EndedBy
    stderr: str  # its last part
    limit_s: float = 0.0
    memory_limit_bytes: int = 0


def failure_of(ended: Ended, output: Output, kernel_count: int) -> Failure | None:
    """None only where the process said it had ended well, and gave every kernel's statistics, whole."""
    if ended.by == "cancelled":
        return Failure("cancelled", "cancelled before it ended")
    if ended.by == "time limit":
        return Failure("time_limit", f"did not end within {ended.limit_s:.0f} s; raise --time-limit{_how_far(output)}")
    said = _said(output.remarks) or _on_stderr(ended)
    if said:
        return said
    if ended.exit_code in {134, 135, 136, 139}:
        return _aborted(ended, output)
    if ended.exit_code == 152:
        return Failure("time_limit", f"used more CPU time than allowed; raise --time-limit{_how_far(output)}")
    if ended.exit_code == 137:
        return Failure("memory_limit", "was killed, as the system does when memory is short; run fewer at once")
    if ended.exit_code != 0:
        return Failure("unknown", f"ended with exit code {ended.exit_code} and said {_last(ended, output)}")
    if not output.has_exit_mark:
        return Failure("unknown", f"ended without the line that marks a whole run, after {_last(ended, output)}")
    if output.finished_count < kernel_count:
        return Failure(
            "nothing_simulated", f"ended well but with statistics of {output.finished_count} of {kernel_count} kernels"
        )
    return None


def _said(remarks: list[str]) -> Failure | None:
    """From standard output, where the simulator writes its own errors."""
    for text in remarks:
        for pattern, code, sentence in _REMARKS:
            if found := re.search(pattern, text):
                return Failure(code, sentence.format(*(group or "" for group in found.groups())))
    return None


_REMARKS: tuple[tuple[str, Code, str], ...] = (
    (
        r"unsupported binary version: 0\b",
        "missing_trace",
        "could not open the kernel's trace file; it is gone or its name holds characters a shell reads otherwise",
    ),
    (
        r"unsupported binary version: (\d+)",
        "unsupported_binary_version",
        "does not know the code of sm_{0}; use a newer Accel-Sim, or --simulator sass, which reads it",
    ),
    (r"Unable to open file: (.*)", "bad_list", "could not open {0}"),
    (
        r"undefined instruction : (\S+)",
        "unknown_opcode",
        "does not know the instruction {0}; use a newer Accel-Sim, or --simulator sass",
    ),
    (
        r"requires more resources than shader has",
        "cta_too_large",
        "one thread block needs more shared memory, registers or threads than an SM of this config has",
    ),
    (
        r"DEADLOCK detected - warp stuck in replay region",
        "replay_deadlock",
        "a warp went round a spin loop 100 times; trace the kernel again with its spin locks marked",
    ),
    (
        r"deadlock detected: (?:last writeback core (\d+) @ gpu_sim_cycle (\d+))?",
        "deadlock",
        (
            "deadlock: nothing ended after cycle {1} (core {0}); the usual cause, a wrong EXIT mask in the trace, is "
            "mended beforehand where there is one, so it is another; --simulator sass may say which barrier"
        ),
    ),
    (
        r"break due to reaching the maximum cycles",
        "cycle_limit",
        "stopped at the config's own limit (-gpgpu_max_cycle, -gpgpu_max_insn or -gpgpu_max_cta); set it to 0",
    ),
    (
        r"Error: (.*SYNCS.*)",
        "barrier_values",
        "the trace lacks the register values of its barriers ({0}); trace again with ALLOW_REG_VAL_TRACING=1",
    ),
)


def _on_stderr(ended: Ended) -> Failure | None:
    for pattern, code, sentence in _STDERR:
        if found := re.search(pattern, ended.stderr):
            return Failure(code, sentence.format(*found.groups(), limit=ended.memory_limit_bytes >> 20))
    return None


_STDERR: tuple[tuple[str, Code, str], ...] = (
    (r"GPGPU-Sim \*\* ERROR: Unknown Option: '([^']*)'", "bad_config", "the config's option {0} is unknown to it"),
    (r"GPGPU-Sim \*\* ERROR: (.+)", "bad_config", "refused the config: {0}"),
    (r"Unable to open file: (.*)", "bad_list", "could not open {0}"),
    (
        r"DEADLOCK detected - warp stuck in replay region",
        "replay_deadlock",
        "a warp went round a spin loop 100 times; trace the kernel again with its spin locks marked",
    ),
    (r"undefined instruction", "unknown_opcode", "does not know an instruction of the trace; use a newer Accel-Sim"),
    (
        r"spec_id < .*m_specialized_unit\.size\(\)",
        "missing_unit",
        (
            "the config has no special unit for an instruction of the trace; add it (Ampere needs "
            "-specialized_unit_4 with UDP), and read its times with care: the config was made for an older class"
        ),
    ),
    (
        r"memory_partition_indexing error",
        "partition_hashing",
        (
            "the config hashes addresses over a number of sub-partitions other than 16, 32 or 64; set "
            "-gpgpu_memory_partition_indexing 0"
        ),
    ),
    (
        r"Unexpected end of input|File format not recognized|Compressed data is corrupt",
        "cut_trace",
        "the kernel's .xz file is broken or cut; trace or copy it again",
    ),
    (r"line\.back\(\) == '\\n'", "cut_trace", "the kernel's trace ends within a line, so it was cut"),
    (
        r"warp_traces\.size\(\) > 0",
        "incomplete_grid",
        "a warp or a thread block of the grid is not in the trace; it was cut, or its tracing was ended early",
    ),
    (
        r"Unsupported file type",
        "unsupported_file",
        "reads .traceg and .traceg.xz only (.tracez since 2.0), not this file; post-process it first",
    ),
    (
        r"std::out_of_range",
        "unsupported_text_version",
        "does not read this version of the trace's text; traces of tracer version 6 need Accel-Sim 2.0",
    ),
    (r"std::bad_alloc|Cannot allocate memory", "memory_limit", "needs more than {limit} MiB; raise --memory-limit"),
)


def _aborted(ended: Ended, output: Output) -> Failure:
    running = output.running
    if running is not None and running.limited_by and running.ctas_per_sm == 0:
        return Failure(
            "cta_too_large",
            f"one thread block needs more {running.limited_by} than an SM of this config has",
        )
    assertion = re.search(r"Assertion `(.*)' failed", ended.stderr)
    why = f"assertion {assertion[1]!r}" if assertion else f"signal {ended.exit_code - 128}"
    return Failure("unknown", f"aborted ({why}) after {_last(ended, output)}")


def _how_far(output: Output) -> str:
    kernel = output.running
    if kernel is None or not kernel.cta_count:
        return ""
    return f" ({kernel.issued_cta_count} of {kernel.cta_count} thread blocks had been issued, cycle {kernel.cycle})"


def _last(ended: Ended, output: Output) -> str:
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    if lines:
        return repr(lines[-1][:160])
    kernel = output.running
    return f"kernel {kernel.uid} had begun" if kernel else "no kernel had begun"
