"""How vLLM captures its graphs, by its names: both of its model runners are watched while they do, and told apart.

Held to the sources of vLLM 0.32 and 0.33 (tests/vllm/contract.py). Not validated on hardware: see DEVIATIONS.md.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cascade_profiler.saying import say

if TYPE_CHECKING:
    from cascade_profiler.captures import CaptureWindow

GRAPHS_MODULE = "vllm.v1.worker.gpu.cudagraph_utils"  # of the second model runner


def watch_capture(runner: Any, keep: Callable[[CaptureWindow], None]) -> None:
    """Record the next `capture_model` of a model runner, and only that; `keep` gets what was recorded."""
    capture_model = runner.capture_model

    @functools.wraps(capture_model)
    def watched(*args: Any, **kwargs: Any) -> Any:
        del runner.capture_model  # it is the class's again
        window = _begin_window()
        if window is None:
            return capture_model(*args, **kwargs)
        with _named_captures():
            try:
                return capture_model(*args, **kwargs)
            finally:
                _end_window(window, keep)

    runner.capture_model = watched


def _begin_window() -> CaptureWindow | None:
    try:
        from cascade_profiler.captures import CaptureWindow  # noqa: PLC0415 - only where graphs are recorded
        from cascade_profiler.collect import TorchCollector  # noqa: PLC0415

        collector = TorchCollector(sys.modules["torch"], is_tried_out=False)
        if not collector.has_gpu:
            return None
        say("the capture of graphs: not validated on hardware")
        return CaptureWindow(collector)
    except Exception as error:  # noqa: BLE001 - the job comes first
        say(f"the capture of graphs is not recorded ({type(error).__name__}: {error}); shapes are solved instead")
        return None


def _end_window(window: CaptureWindow, keep: Callable[[CaptureWindow], None]) -> None:
    try:
        window.end()
        keep(window)
    except Exception as error:  # noqa: BLE001 - the job comes first
        say(f"the capture of graphs was not recorded ({type(error).__name__}: {error}); shapes are solved instead")


@contextmanager
def _named_captures() -> Iterator[None]:
    """The first model runner says in the profile which batch size it captures; of the second it is said here."""
    manager = getattr(sys.modules.get(GRAPHS_MODULE), "CudaGraphManager", None)
    if manager is None:
        yield
        return
    capture = manager.capture

    @functools.wraps(capture)
    def named(self: Any, create_forward_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return capture(self, _naming(create_forward_fn), *args, **kwargs)

    manager.capture = named
    try:
        yield
    finally:
        manager.capture = capture


def _naming(create_forward_fn: Callable[..., Any]) -> Callable[..., Any]:
    """What makes the forward pass of a batch size, whose passes that are captured carry its name."""
    torch = sys.modules["torch"]

    def create(desc: Any, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        forward = create_forward_fn(desc, *args, **kwargs)

        def run(mode: Any) -> Any:
            if mode.name != "PIECEWISE" and not torch.cuda.is_current_stream_capturing():
                return forward(mode)  # a warm-up
            with torch.profiler.record_function(f"capture_{desc.num_tokens}_{desc.cg_mode.name}"):
                return forward(mode)

        return run

    return create
