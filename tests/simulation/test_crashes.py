"""The pipeline under a log and a store that fail: before, during and after every append, commit and effect.

A crash throws everything in memory away; what the log and the store had accepted stays. Services run in random order,
reads are repeated at random, and a run must still end, once, under the hash of the run without faults. A failure
prints its seed.
"""

import random
from dataclasses import dataclass

import pytest

from services.aggregator import queries
from services.aggregator.store import Store
from services.ingest import admission
from services.runtime.embedded import Embedded
from services.runtime.eventlog import EventLog
from tests.factories import RUN, Clock, fake_simulators, kineto_trace, settings

POINT_COUNT = 1000
GPUS = ("h100_sxm", "l4")


class Crash(BaseException):
    """The process is gone: nothing may catch it and go on."""


@dataclass
class Fate:
    """Crashes at the operation whose countdown reaches zero, in the chosen manner."""

    chance: random.Random
    countdown: int = -1
    manner: str = "before"

    def operation(self, perform, half):
        self.countdown -= 1
        if self.countdown != 0:
            return perform()
        if self.manner == "after":
            perform()
        elif self.manner == "during":
            half()
        raise Crash


class UncertainLog(EventLog):
    """An event log that fails as its fate says, and sometimes delivers again what was read before."""

    fate: Fate

    def append(self, records, *, timestamp_ms, commit=None):
        def perform():
            super(UncertainLog, self).append(records, timestamp_ms=timestamp_ms, commit=commit)

        def half():
            with pytest.raises(Crash):
                super(UncertainLog, self).append(BreakingOff(records), timestamp_ms=timestamp_ms, commit=commit)

        self.fate.operation(perform, half)

    def read(self, topic, from_offset, limit, *, types=()):
        if from_offset and self.fate.chance.random() < 0.2 and super().read(topic, from_offset, 1):
            from_offset = self.fate.chance.randrange(from_offset)  # at least once: some of it was delivered before
        return super().read(topic, from_offset, limit, types=types)

    def close(self):
        """The disk survives the process."""


class BreakingOff(list):
    """Records of which only half can be written."""

    def __iter__(self):
        for index in range(len(self)):
            if index >= len(self) // 2:
                raise Crash
            yield self[index]
        raise Crash


class UncertainStore(Store):
    """A store that fails as its fate says."""

    fate: Fate

    def commit(self, rows, positions):
        def perform():
            super(UncertainStore, self).commit(rows, positions)

        def half():
            with pytest.raises(Crash):
                super(UncertainStore, self).commit(BreakingItems(rows), positions)

        self.fate.operation(perform, half)

    def close(self):
        """The disk survives the process."""

    def wipe(self):
        for (table,) in self.db.execute(
            "select table_name from duckdb_tables() where not internal and not temporary"
        ).fetchall():
            self.db.execute(f"delete from {table}")


class BreakingItems(dict):
    def items(self):
        yield from list(super().items())[: len(self) // 2]
        raise Crash


class Machine:
    """A box with a disk, on which the process is started as often as it takes."""

    def __init__(self, home, store, fate):
        self.home, self.fate, self.clock = home, fate, Clock()
        self.store = store
        self.store.wipe()
        self.log = UncertainLog(":memory:")
        self.log.fate = self.store.fate = fate

    def boot(self):
        return Embedded(
            settings(self.home),
            fake_simulators(),
            now_ms=self.clock,
            open_log=lambda _: self.log,
            open_store=lambda _: self.store,
        )

    def until_done(self, trace_file):
        """Ask for the import and the run, as an impatient user does: again after each crash."""
        crash_count = 0
        while True:
            engine = None
            try:
                engine = self.boot()
                self.ask_and_work(engine, trace_file)
            except Crash:
                crash_count += 1
                self.fate.countdown = -1 if crash_count > 2 else self.fate.chance.randrange(1, 30)
            else:
                return crash_count
            finally:
                if engine is not None:
                    engine._lock.close()

    def ask_and_work(self, engine, trace_file):
        artifact = engine.store_artifact(trace_file)
        upload = admission.upload([artifact], name="t", model=None, source_gpu=None)
        engine.upload(upload)
        self.work(engine)
        if engine.store.query("select 1 from run_requests") == [] and self.log.end("runs") == 0:
            engine.request_run(RUN, upload.trace_id, GPUS)
        self.work(engine)

    def work(self, engine):
        idle = 0
        while idle < 3:
            self.fate.chance.shuffle(engine.services)
            steps = [service.step() for service in engine.services]  # every one gets its turn
            idle = 0 if any(steps) else idle + 1


@pytest.fixture(scope="module")
def store():
    return UncertainStore(None)


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    return kineto_trace(tmp_path_factory.mktemp("trace") / "small.json")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, store, trace_file):
    """State hash and number of operations of the run without faults."""
    fate = Fate(random.Random(0))
    machine = Machine(tmp_path_factory.mktemp("home"), store, fate)
    machine.until_done(trace_file)
    return queries.run_report(store, RUN)["state_hash"], -fate.countdown


@pytest.mark.parametrize("block", range(20))
def test_nothing_is_lost_or_doubled_whenever_it_crashes(block, tmp_path, store, trace_file, undisturbed):
    expected_hash, operation_count = undisturbed
    assert operation_count > 8
    crashed = 0
    for seed in range(block * POINT_COUNT // 20, (block + 1) * POINT_COUNT // 20):
        chance = random.Random(seed)
        fate = Fate(chance, chance.randrange(1, operation_count + 1), chance.choice(("before", "during", "after")))
        machine = Machine(tmp_path, store, fate)
        crashed += machine.until_done(trace_file) > 0
        report = queries.run_report(store, RUN)
        assert report["state_hash"] == expected_hash, f"seed {seed}"
        ends = machine.log.read("predictions", 0, 10_000, types=("RunCompleted",))
        assert {end.record.value for end in ends} == {ends[0].record.value}, f"seed {seed}"
        for table, key in (
            ("simulated_kernels", "config_id, task_id"),
            ("launches", "rank, seq"),
            ("predicted_steps", "config_id, step"),
        ):
            (row,) = store.query(f"select count(*) as n, count(distinct ({key})) as keys from {table}")
            assert row["n"] == row["keys"] > 0, f"seed {seed}: {table}"
    assert crashed > 40
