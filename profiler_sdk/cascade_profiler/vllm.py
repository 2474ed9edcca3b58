"""vLLM's names, which only this and vllm_graphs.py know: workers are hooked without a line of vLLM being changed.

`Worker.execute_model` and `Worker.sample_tokens` are wrapped once their module is imported, in every process of an
armed job; other workers (CPU, XPU) derive from that class. Four methods are added for `collective_rpc`. A step that
nobody traces costs one attribute test. Checked against vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade_profiler.arming import arm, is_armed_for_graphs
from cascade_profiler.orders import Orders, standing_orders
from cascade_profiler.saying import forget, say
from cascade_profiler.vllm_graphs import watch_capture

if TYPE_CHECKING:
    from cascade_schemas.events import CollectorFound

    from cascade_profiler.captures import CaptureWindow
    from cascade_profiler.collect import Collector
    from cascade_profiler.kineto import Capture, Seen

WORKER_MODULE = "vllm.v1.worker.gpu_worker"
RAY_WITH_WORKERS = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"  # the executor of Ray whose workers are called as any other's
WRAPPED = ("execute_model", "sample_tokens")
START, STOP, FETCH, KNOWN = "cascade_start", "cascade_stop", "cascade_fetch", "cascade_known"

_SEND_TIMEOUT_S = 30.0


def LLM(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - stands for vllm.LLM
    """vllm.LLM, armed before it is built, and with the front end's own times of every request."""
    arm()
    kwargs.setdefault("disable_log_stats", False)
    from vllm import LLM as Engine  # noqa: N811, PLC0415 - found when it is asked for

    return Engine(*args, **kwargs)


def install() -> None:
    """Hook the worker class, now or when its module is imported. Twice is once."""
    module = sys.modules.get(WORKER_MODULE)
    if module is not None:
        hook(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def hook(module: ModuleType) -> None:
    """Wrap the worker class of a module. What does not look as expected is left alone, and said."""
    worker_class = getattr(module, "Worker", None)
    missing = [name for name in WRAPPED if not callable(getattr(worker_class, name, None))]
    if worker_class is None or missing:
        say(
            f"this vLLM's worker has no {' and no '.join(missing) or 'class Worker'}; it cannot be traced by this"
            " version: use 0.32 or 0.33, or upgrade cascade-profiler"
        )
        return
    if hasattr(worker_class, START):
        return
    _seat.standing = standing_orders()
    _wrap(worker_class)
    setattr(worker_class, START, _start)
    setattr(worker_class, STOP, _stop)
    setattr(worker_class, FETCH, _fetch)
    setattr(worker_class, KNOWN, _known)


class _Seat:
    """Who traces this process. `tracer` is looked at in every step."""

    def __init__(self) -> None:
        self.tracer: Any = None
        self.standing: Orders | None = None  # to be followed from the first step on
        self.destination: Any = None
        self.schedule = Schedule()
        self.rank = 0
        self.is_warming_up = False  # steps of made-up requests, before graphs are captured
        self.has_profiled = False  # host times are of no use any more
        self.captures: CaptureWindow | None = None  # of the engine's graphs, where they were recorded


class Schedule:
    """Which requests are in a step, numbered by first appearance, and how long their prompts are.

    Follows the scheduler's messages from the first traced step on: later ones name only what is new.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._count = 0

    def batch(self, scheduler_output: Any) -> Any:
        """The step's requests in the engine's order."""
        from cascade_profiler.recorder import Batch  # noqa: PLC0415 - costs nothing once it is loaded

        computed: dict[str, int] = {}
        for new in scheduler_output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            if new.req_id not in self._prompts:
                self._prompts[new.req_id] = _prompt_tokens(new)
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        numbers, q, kv, prompts = [], [], [], []
        for request, count in scheduler_output.num_scheduled_tokens.items():
            number = self._numbers.get(request)
            if number is None:
                number = self._numbers[request] = self._count
                self._count += 1
            numbers.append(number)
            q.append(count)
            kv.append(computed.get(request, 0) + count)
            prompts.append(self._prompts.get(request, 0))
        for request in scheduler_output.finished_req_ids:
            self._numbers.pop(request, None)
            self._prompts.pop(request, None)
        return Batch(tuple(numbers), tuple(q), tuple(kv), tuple(prompts))


_seat = _Seat()


def _wrap(worker_class: Any) -> None:
    execute, sample = worker_class.execute_model, worker_class.sample_tokens

    @functools.wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if _seat.tracer is None and (
            _seat.standing is None or _seat.is_warming_up or not _follow_standing_orders(self)
        ):
            return execute(self, scheduler_output, *args, **kwargs)
        tracer = _seat.tracer
        try:
            batch = _seat.schedule.batch(scheduler_output)
            began_ns = tracer.before_execute(batch)
        except Exception as error:  # noqa: BLE001 - the job comes first
            _fail("before a step", error)
            return execute(self, scheduler_output, *args, **kwargs)
        output = execute(self, scheduler_output, *args, **kwargs)
        try:
            tracer.after_execute(batch, began_ns, is_over=output is not None)
        except Exception as error:  # noqa: BLE001
            _fail("after a step", error)
        return output

    @functools.wraps(sample)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = _seat.tracer
        if tracer is None:
            return sample(self, *args, **kwargs)
        output = sample(self, *args, **kwargs)
        try:
            tracer.after_sample()
        except Exception as error:  # noqa: BLE001
            _fail("after sampling", error)
        return output

    worker_class.execute_model = execute_model
    worker_class.sample_tokens = sample_tokens
    _wrap_warm_up(worker_class)
    shutdown = getattr(worker_class, "shutdown", None)
    if shutdown is not None:

        @functools.wraps(shutdown)
        def ended(self: Any, *args: Any, **kwargs: Any) -> Any:
            _end_at_exit()
            return shutdown(self, *args, **kwargs)

        worker_class.shutdown = ended


# --- graphs, while the engine captures them --------------------------------------------------------------------------


def _wrap_warm_up(worker_class: Any) -> None:
    warm_up = getattr(worker_class, "compile_or_warm_up_model", None)
    if warm_up is None:
        return

    @functools.wraps(warm_up)
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _seat.standing is not None and (passed_by := why_passed_by(self)):
            say(passed_by)
        if _wants_captures(self):
            try:
                watch_capture(self.model_runner, _keep_captures)
            except Exception as error:  # noqa: BLE001 - the job comes first
                say(f"the capture of graphs cannot be recorded ({type(error).__name__}: {error}); the job goes on")
        _seat.is_warming_up = True
        try:
            return warm_up(self, *args, **kwargs)
        finally:
            _seat.is_warming_up = False

    worker_class.compile_or_warm_up_model = compile_or_warm_up_model


def _wants_captures(worker: Any) -> bool:
    orders = _seat.standing
    is_wanted = is_armed_for_graphs() if orders is None else (orders.mode, orders.collector) in _WITH_OPS
    if is_wanted and getattr(getattr(worker, "profiler_config", None), "capture_torch_profiler", False):
        say("this job records the capture of its graphs itself; import those files together with the recording's")
        return False
    return is_wanted


_WITH_OPS = {("kernels", name) for name in ("", "torch", "vllm")}


def _keep_captures(window: CaptureWindow) -> None:
    _seat.captures, _seat.has_profiled = window, True


# --- orders from the environment -----------------------------------------------------------------------------------


def _follow_standing_orders(worker: Any) -> bool:
    """Begin the trace that the environment asks for, once."""
    orders, _seat.standing = _seat.standing, None
    if orders is None:
        return False
    _begin(worker, orders)
    return _seat.tracer is not None


def _fail(when: str, error: Exception) -> None:
    """A bug of ours ends the trace, not the job."""
    tracer, _seat.tracer = _seat.tracer, None
    say(f"tracing ended {when} ({type(error).__name__}: {error}); the job goes on")
    if tracer is not None:
        try:
            tracer.stop(5.0)
        except Exception as second:  # noqa: BLE001
            say(f"and could not be ended in order ({type(second).__name__})")


# --- called over collective_rpc -----------------------------------------------------------------------------------


def _start(worker: Any, orders_json: str) -> dict[str, Any]:
    """Begin to trace this rank; answers what it found."""
    forget()
    if _seat.tracer is not None:
        return {"error": "this job is being traced already; end that trace first"}
    _seat.standing = None
    return _begin(worker, Orders.from_json(orders_json))


def _stop(worker: Any) -> dict[str, Any]:  # noqa: ARG001 - called as a method
    """End the trace of this rank; answers what became of it."""
    from cascade_profiler.tracer import report_of  # noqa: PLC0415

    tracer, _seat.tracer = _seat.tracer, None
    if tracer is None:
        return {"error": "nothing was being traced"}
    delivery = tracer.stop(_SEND_TIMEOUT_S)
    report = report_of(tracer, delivery, _seat.rank)
    report["host_profile"] = tracer.measured().model_dump(mode="json") if not _seat.has_profiled else None
    return report


def _fetch(worker: Any) -> bytes:  # noqa: ARG001
    """The records of a memory:// destination, as one record stream."""
    from cascade_schemas.recording import packed_records  # noqa: PLC0415

    records = getattr(_seat.destination, "records", [])
    return packed_records(records, 0) if records else b""


def _known(worker: Any) -> list[tuple[Any, ...]]:  # noqa: ARG001
    """What sampling has learnt on this rank: the fields of a KindReport each."""
    tracer = _seat.tracer
    return [tuple(row) for row in tracer.known(_SEND_TIMEOUT_S)] if tracer is not None else []


def _begin(worker: Any, orders: Orders) -> dict[str, Any]:
    """The trace of one rank. Answers {"error": sentence} where it cannot be."""
    try:
        if passed_by := why_passed_by(worker):
            say(passed_by)
            return {"error": passed_by}
        return _instructions_begun() if orders.mode == "sass" else _begun(worker, orders)
    except Exception as error:  # noqa: BLE001 - the job comes first
        sentence = f"tracing could not begin ({type(error).__name__}: {error}); the job goes on"
        say(sentence)
        return {"error": sentence}


def _begun(worker: Any, orders: Orders) -> dict[str, Any]:
    from cascade_schemas.events import HostProfileRecorded, RecordingStarted  # noqa: PLC0415
    from cascade_schemas.model import ModelSpec  # noqa: PLC0415

    from cascade_profiler.clock import aligned_clock  # noqa: PLC0415
    from cascade_profiler.collect import found_collectors, reasons  # noqa: PLC0415
    from cascade_profiler.destinations import destination_of  # noqa: PLC0415
    from cascade_profiler.gpu_clock import GpuClock, why_no_gpu_clock  # noqa: PLC0415
    from cascade_profiler.plan import SamplingPlan  # noqa: PLC0415
    from cascade_profiler.recorder import Recorder  # noqa: PLC0415
    from cascade_profiler.spool import Spool  # noqa: PLC0415
    from cascade_profiler.tracer import Tracer  # noqa: PLC0415

    orders = of_engine(orders, int(getattr(worker.parallel_config, "data_parallel_index", 0)))
    rank, world_size = int(worker.rank), int(worker.parallel_config.world_size)
    collector: Collector | None = None
    found: list[CollectorFound] = []
    if orders.mode == "kernels":
        collector, found = _own_profiler(worker, orders.collector)
        if collector is None:
            collector, others = found_collectors(orders.collector)
            found += others
        if collector is None:
            say(f"no profiler works here ({reasons(found)}); steps are recorded without kernels")
        for one in found:
            if one.state == "used" and one.said:
                say(f"{one.name}: {one.said}")
    captures: list[Capture] = []
    if collector is not None and collector.has_gpu and _seat.captures is not None:
        captures = _seat.captures.found()
    device = device_facts()
    clock = aligned_clock()
    is_on_gpu = collector.has_gpu if collector is not None else bool(device["gpu_name"])
    started = RecordingStarted(
        trace_id=orders.trace_id,
        rank=rank,
        rank_count=world_size,
        name=orders.name,
        provenance="measured" if is_on_gpu else "recorded-on-cpu",
        tool=f"cascade-profiler {collector.name if collector is not None else 'steps'}",
        origin_unix_ns=orders.origin_unix_ns,
        began_ns=max(clock.unix_ns(time.perf_counter_ns()) - orders.origin_unix_ns, 0),
        clock_error_ns=clock.error_ns,
        world_size=world_size,
        source_gpu=orders.source_gpu or None,
        routing=orders.routing,
        model=ModelSpec.model_validate(orders.model) if orders.model else model_of(worker),
        engine="vllm",
        engine_version=str(getattr(sys.modules.get("vllm"), "__version__", "")),
        collectors=tuple(found),
        capture_count=len(captures),
        **device,
    )
    destination = destination_of(orders.destination, trace_id=orders.trace_id, rank=rank, token=orders.token)
    is_kept_elsewhere = orders.destination.startswith(("memory:", "file:"))
    folder = Path(orders.spool_folder or tempfile.gettempdir())
    spool = None if is_kept_elsewhere else Spool(spool_path(folder, orders.trace_id, rank), orders.spool_bytes_limit)
    profile = None
    if orders.host_profile and rank == 0:
        profile = HostProfileRecorded.model_validate(
            {**orders.host_profile, "trace_id": orders.trace_id, "type": "HostProfileRecorded"}
        )
    recorder = Recorder(started, destination, spool, captures=captures, memory_bytes_limit=orders.memory_bytes_limit)
    torch = sys.modules.get("torch")
    no_gpu_clock = "a profiler ran beside it" if collector is not None else why_no_gpu_clock(torch)
    if not no_gpu_clock:
        say("GPU times of steps: not validated on hardware")
    _seat.schedule = Schedule()
    _seat.destination, _seat.rank = destination, rank
    _seat.has_profiled |= collector is not None
    _seat.tracer = Tracer(
        recorder,
        orders.trace_id,
        clock,
        orders.origin_unix_ns,
        collector,
        SamplingPlan(orders.goal) if orders.is_sampling and collector is not None else None,
        profile=profile,
        gpu_clock=None if torch is None or no_gpu_clock else GpuClock(torch.cuda),
        no_gpu_clock=no_gpu_clock,
    )
    atexit.register(_end_at_exit)
    return {
        "rank": rank,
        "collector": collector.name if collector is not None else "",
        "collectors": [one.model_dump(mode="json") for one in found],
    }


def why_passed_by(worker: Any) -> str:
    """Why no step of this worker is seen; "" where steps are."""
    is_ray = getattr(worker.parallel_config, "distributed_executor_backend", None) == "ray"
    if not is_ray or os.environ.get(RAY_WITH_WORKERS, "0") not in ("", "0"):
        return ""
    return (
        "Ray's executor calls the model runner past its worker, so that no step is seen and nothing is recorded; set"
        f" {RAY_WITH_WORKERS}=1 or use distributed_executor_backend='mp'"
    )


def of_engine(orders: Orders, index: int) -> Orders:
    """Data-parallel engines schedule steps of their own, and their ranks all count from 0: each is its own trace."""
    if not index:
        return orders
    trace_id = hashlib.sha256(f"{orders.trace_id}/{index}".encode()).hexdigest()[: len(orders.trace_id)]
    destination = orders.destination
    if destination.startswith("file:"):
        destination = f"{destination.removesuffix('.cascade-trace')}.dp{index}"
    say(f"engine {index} of this data-parallel job is trace {trace_id}, {destination}")
    name = f"{orders.name} (engine {index})"
    return replace(orders, trace_id=trace_id, name=name, destination=destination)


def _instructions_begun() -> dict[str, Any]:
    """A tracer of instructions is around this process: it records, and is told when."""
    from cascade_profiler.sass_windows import SassWindows, Switch  # noqa: PLC0415

    _seat.schedule = Schedule()
    _seat.has_profiled = True
    _seat.tracer = SassWindows(Switch(sys.modules["torch"]))
    atexit.register(_end_at_exit)
    return {}


class WindowFiles:
    """vLLM's own torch profiler, a file per window: for a job built with profiler_config, whose profiler would be a
    second one beside ours.
    """

    name = "vllm"

    def __init__(self, worker: Any, folder: Path, *, has_gpu: bool) -> None:
        self.has_gpu = has_gpu
        self._worker = worker
        self._folder = folder
        self._prefix = f"cascade{os.getpid()}w"
        self._count = 0

    def start(self) -> None:
        self._count += 1
        self._worker.profile(True, f"{self._prefix}{self._count}")

    def stop(self) -> Callable[[], Iterable[Seen]]:
        self._worker.profile(False)
        pattern = f"{self._prefix}{self._count}_*"
        return lambda: self._read(sorted(self._folder.glob(pattern)))

    def _read(self, paths: Sequence[Path]) -> Iterator[Seen]:
        from cascade_profiler.kineto import seen_in_file  # noqa: PLC0415 - costs nothing once it is loaded

        traces = [path for path in paths if ".pt.trace.json" in path.name]
        if not traces:
            raise FileNotFoundError("vLLM's profiler wrote no trace file for the window")
        for path in traces:
            yield from seen_in_file(path)
        for path in paths:
            path.unlink(missing_ok=True)


def _own_profiler(worker: Any, wanted: str) -> tuple[Collector | None, list[CollectorFound]]:
    """The profiler of vLLM itself, where the job was built with one: two in a process do not work."""
    from cascade_schemas.events import CollectorFound  # noqa: PLC0415

    config = getattr(worker, "profiler_config", None)
    folder = getattr(config, "torch_profiler_dir", "")
    if wanted not in ("", WindowFiles.name) or getattr(config, "profiler", None) != "torch" or not folder:
        if wanted == WindowFiles.name:
            said = 'the job has no torch profiler of its own; build it with profiler_config={"profiler": "torch", …}'
            return None, [CollectorFound(name=WindowFiles.name, state="failed", said=said)]
        return None, []
    if not getattr(config, "torch_profiler_record_shapes", False):
        say("vLLM's profiler records no shapes; build the job with torch_profiler_record_shapes=True")
    has_gpu = bool(device_facts()["gpu_name"])
    said = "not validated on hardware" if has_gpu else ""
    found = CollectorFound(name=WindowFiles.name, state="used", said=said, is_validated=not has_gpu)
    return WindowFiles(worker, Path(folder), has_gpu=has_gpu), [found]


def _end_at_exit() -> None:
    """The engine shuts down: whatever was not ended is ended now, in the few seconds it gives its workers."""
    tracer, _seat.tracer = _seat.tracer, None
    if tracer is not None:
        tracer.stop(3.0)


def spool_path(folder: Path, trace_id: str, rank: int) -> Path:
    """Where records of a rank wait while their destination is away."""
    return folder / f"cascade-spool-{trace_id}-{rank}-{os.getpid()}.cascade-trace"


# --- what the job is -----------------------------------------------------------------------------------------------


def model_of(worker: Any) -> Any:
    """The architecture being served, or None where it is none that is known. Its name never has a path in it."""
    from cascade_schemas.model import ModelSpec  # noqa: PLC0415

    config = worker.model_config
    name = public_name(str(config.model))
    try:
        return ModelSpec.from_config(config.hf_config.to_dict(), name=name)
    except Exception as error:  # noqa: BLE001 - foreign configuration of any shape
        say(f"the architecture of {name} is not understood ({error}); pass model=FILE or a known name")
        return None


def public_name(name: str) -> str:
    """A model's name as it may leave this machine: of a folder only its own name."""
    return name if not Path(name).is_absolute() and not Path(name).exists() else Path(name).name


def device_facts() -> dict[str, Any]:
    """Of the GPU that torch uses, if it uses one; a whitelist."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {"gpu_name": ""}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu_name": str(properties.name),
        "compute_capability": (int(properties.major), int(properties.minor)),
        "sm_count": int(properties.multi_processor_count),
        "dram_bytes": int(properties.total_memory),
    }


def _prompt_tokens(new: Any) -> int:
    ids = getattr(new, "prompt_token_ids", None)
    if ids is not None:
        return len(ids)
    embeds = getattr(new, "prompt_embeds", None)
    return int(embeds.shape[0]) if embeds is not None else 0


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find the worker's module, and hooks it when it has been run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != WORKER_MODULE:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            hook(module)
        except Exception as error:  # noqa: BLE001 - the job comes first
            say(f"vLLM's worker could not be hooked ({type(error).__name__}: {error}); nothing is traced")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Limits(NamedTuple):
    """What an engine can be asked for."""

    context_tokens: int
    requests: int
    step_tokens: int
    vocabulary: int


def limits_of(llm: Any) -> Limits:
    config = llm.llm_engine.vllm_config
    model = config.model_config
    scheduler = config.scheduler_config
    return Limits(
        context_tokens=int(model.max_model_len),
        requests=int(scheduler.max_num_seqs),
        step_tokens=int(scheduler.max_num_batched_tokens),
        vocabulary=int(model.get_vocab_size()),
    )


def generate(llm: Any, prompts: Sequence[Sequence[int]], output_tokens: int) -> None:
    """So many tokens after each prompt of token ids, whatever they are."""
    from vllm import SamplingParams  # noqa: PLC0415 - of the job's own environment

    params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)


def rpc(llm: Any) -> Callable[..., list[Any]]:
    """The job's collective_rpc."""
    found: Callable[..., list[Any]] = llm.collective_rpc
    return found
