"""The aggregator's shell around Faust, where a broker does not do what it should."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("faust", reason="NOT RUN: faust is not installed; run: python3 infra/setup.py cluster")

from faust.types import TP

from services.aggregator import app


class BeganAnew(Exception):
    pass


class Consumer:
    """Faust's, with the partitions it was dealt."""

    def __init__(self, *dealt):
        self.dealt, self.asked = dealt, 0

    def assignment(self):
        self.asked += 1
        return [TP(topic, 0) for topic in self.dealt]

    def highwater(self, part):
        return None


@pytest.fixture
def beating(monkeypatch):
    monkeypatch.setattr(app, "_WITHOUT_PARTITIONS_S", 0.05)
    monkeypatch.setattr(app, "_BEAT_S", 0.01)

    def execv(program, arguments):
        raise BeganAnew

    monkeypatch.setattr(app.os, "execv", execv)

    def beat(consumer):
        active = app.Active.__new__(app.Active)
        active._settings = SimpleNamespace(session_timeout_ms=10)
        active._figures = SimpleNamespace(seen=lambda *_, **__: None)
        active._is_full, active.consumer = False, consumer
        asyncio.run(asyncio.wait_for(active._beat(), 0.5))

    return beat


@pytest.mark.parametrize("consumer", [None, Consumer(), Consumer("predictions")])
def test_without_partitions_it_begins_anew(beating, consumer):
    with pytest.raises(BeganAnew):
        beating(consumer)


def test_with_partitions_it_goes_on(beating):
    consumer = Consumer("results")
    with pytest.raises(TimeoutError):
        beating(consumer)
    assert consumer.asked > 10
