"""The process that a test traces: nothing begun in it, nothing said, and a torch that is no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from cascade_profiler import arming, collect, saying, vllm

from tests.fakes.torch_profiler import FakeTorch


def fresh_seat(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No trace, nothing told, no orders of a test before; armed. What a test began is stopped after it."""
    saying.forget()
    monkeypatch.setattr(vllm, "_seat", vllm._Seat())
    monkeypatch.setenv(arming.VARIABLE, "armed")
    yield
    if vllm._seat.tracer is not None:
        vllm._seat.tracer.stop(1.0)


def use_torch(monkeypatch: pytest.MonkeyPatch, fake: FakeTorch) -> FakeTorch:
    """Found by whoever looks for torch."""
    monkeypatch.setattr(collect, "_module", lambda name: fake if name == "torch" else None)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake
