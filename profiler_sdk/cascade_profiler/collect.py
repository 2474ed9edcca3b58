"""What records kernels in the job's process: found, tried out, and chosen; none of it is required."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from cascade_schemas.events import CollectorFound

from cascade_profiler.kineto import Seen, seen_in_process


class Unusable(Exception):
    """A collector that cannot work here; the sentence says why and what would help."""


class Collector(Protocol):
    """Records between `start` and `stop`, both called in the thread that runs the model."""

    name: str
    has_gpu: bool  # False: it sees ops of a CPU and no kernels

    def start(self) -> None: ...

    def stop(self) -> Callable[[], Iterable[Seen]]:
        """End the window. What is returned reads it out, in any thread: the job does not wait for that."""


class TorchCollector:
    """torch.profiler in short sessions, without stacks; its result is read in the process, no file is written."""

    name = "torch"

    def __init__(self, torch: Any, *, is_tried_out: bool = True) -> None:
        """Tries itself out, unless it may not: a session too many before graphs are captured can end all recording of
        the GPU. Raises Unusable.
        """
        self._profiler = torch.profiler
        self.has_gpu = bool(torch.cuda.is_available())
        activities = [self._profiler.ProfilerActivity.CPU]
        if self.has_gpu:
            activities.append(self._profiler.ProfilerActivity.CUDA)
        self._options: dict[str, Any] = {"activities": activities, "record_shapes": True, "with_stack": False}
        config = getattr(torch._C._profiler, "_ExperimentalConfig", None)  # noqa: SLF001 - the only way to the args
        if config is None:
            raise Unusable("this torch has no profiler whose events can be read in the process; torch 2.13 has")
        try:
            self._options["experimental_config"] = config(expose_kineto_event_metadata=True)
        except TypeError as error:
            raise Unusable("this torch does not expose its profiler's metadata; torch 2.13 does") from error
        self._running: Any = None
        if is_tried_out:
            self._try_out(torch)

    def start(self) -> None:
        self._running = self._profiler.profile(**self._options)
        self._running.start()

    def stop(self) -> Callable[[], Iterable[Seen]]:
        running, self._running = self._running, None
        running.stop()
        return lambda: seen_in_process(running.profiler.kineto_results.events())

    def _try_out(self, torch: Any) -> None:
        device = "cuda" if self.has_gpu else "cpu"
        self.start()
        torch.ones(8, device=device).add_(1)
        seen = list(self.stop()())
        wanted = "kernel" if self.has_gpu else "cpu_op"
        if not any(event.kind == wanted for event in seen):
            raise Unusable(
                f"torch's profiler saw no {wanted} in its own test: another profiler (nsys, ncu, DCGM) holds the GPU's"
                " counters; end it, or run without it"
            )


def found_collectors(
    wanted: str, find: Callable[[str], Any] | None = None
) -> tuple[Collector | None, list[CollectorFound]]:
    """The collector to use, and what came of trying each. `wanted`: a name; "" takes the first that works."""
    find = find or _module
    chosen: Collector | None = None
    found: list[CollectorFound] = []
    for name, (module_name, make, is_validated) in _COLLECTORS.items():
        if wanted not in ("", name) or chosen is not None:
            continue
        module = find(module_name)
        if module is None:
            found.append(CollectorFound(name=name, state="absent", said=f"{module_name} is not installed"))
            continue
        try:
            chosen = make(module)
        except Unusable as reason:
            found.append(CollectorFound(name=name, state="failed", said=str(reason)))
        except Exception as error:  # noqa: BLE001 - foreign code: whatever it does, the job goes on
            found.append(CollectorFound(name=name, state="failed", said=f"{type(error).__name__}: {error}"))
        else:
            is_proven = is_validated and not chosen.has_gpu
            said = "" if is_proven else "not validated on hardware"
            found.append(CollectorFound(name=name, state="used", said=said, is_validated=is_proven))
    if wanted and wanted not in _COLLECTORS:
        found.append(
            CollectorFound(
                name=wanted, state="failed", said=f"{wanted!r} is no collector; there are {', '.join(_COLLECTORS)}"
            )
        )
    return chosen, found


def reasons(found: Sequence[CollectorFound]) -> str:
    """Why no collector works, in one line."""
    return "; ".join(f"{one.name}: {one.said}" for one in found)


def _module(name: str) -> Any:
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.import_module(name)
    except (ImportError, ValueError):
        return None


def _cupti(module: Any) -> Collector:
    from cascade_profiler.cupti import CuptiCollector  # noqa: PLC0415 - only where it is asked for

    return CuptiCollector(module)


_COLLECTORS: dict[str, tuple[str, Callable[[Any], Collector], bool]] = {
    # name: module, maker, whether it has run on what it is for. Only torch's CPU side has: no machine here has a GPU.
    "torch": ("torch", TorchCollector, True),
    "cupti": ("cupti.cupti", _cupti, False),
}
