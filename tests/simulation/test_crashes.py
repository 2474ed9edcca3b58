"""The pipeline under a log and a store that fail: before, during and after every append, commit and effect.

A crash throws everything in memory away; what the log and the store had accepted stays. Services run in random order,
reads are repeated at random, and a run must still end, once, under the hash of the run without faults. A failure
prints its seed.
"""

import contextlib
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pytest

from services.aggregator import queries
from services.aggregator.store import Store
from services.ingest import admission
from services.runtime.embedded import Embedded
from services.runtime.eventlog import EventLog
from tests.factories import RUN, Clock, fake_simulators, kineto_trace, settings

POINT_COUNT = 1000
PROCESS_COUNT = 2
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
            with contextlib.suppress(Crash):
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
            with contextlib.suppress(Crash):
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


# One store per process, emptied between machines: opening a database costs more than a whole crashed run.
_store = None


def store_of_this_process():
    global _store  # noqa: PLW0603
    if _store is None:
        _store = UncertainStore(None, thread_count=1)
    return _store


def undisturbed(home, trace_file):
    """State hash and number of operations of the run without faults."""
    fate = Fate(random.Random(0))
    machine = Machine(home, store_of_this_process(), fate)
    machine.until_done(trace_file)
    return queries.run_report(machine.store, RUN)["state_hash"], -fate.countdown


def crash(seeds, home, trace_file):
    """Run each seed's machine to its end; what went wrong, and how many of them crashed at all."""
    store = store_of_this_process()
    expected_hash, operation_count = undisturbed(home, trace_file)
    wrong, crashed = [], 0
    for seed in seeds:
        chance = random.Random(seed)
        fate = Fate(chance, chance.randrange(1, operation_count + 1), chance.choice(("before", "during", "after")))
        machine = Machine(home, store, fate)
        crashed += machine.until_done(trace_file) > 0
        wrong += [f"seed {seed}: {what}" for what in complaints(machine, expected_hash)]
    return wrong, crashed


def complaints(machine, expected_hash):
    """What a finished machine has lost or doubled."""
    report = queries.run_report(machine.store, RUN)
    if report["state_hash"] != expected_hash:
        yield f"hash {report['state_hash']} instead of {expected_hash}"
    ends = machine.log.read("predictions", 0, 10_000, types=("RunCompleted",))
    if len({end.record.value for end in ends}) != 1:
        yield f"{len(ends)} different ends"
    for table, key in (
        ("simulated_kernels", "config_id, task_id"),
        ("launches", "rank, seq"),
        ("predicted_steps", "config_id, step"),
    ):
        (row,) = machine.store.query(f"select count(*) as n, count(distinct ({key})) as keys from {table}")
        if not row["n"] == row["keys"] > 0:
            yield f"{table} has {row['n']} rows of {row['keys']} identities"


@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_doubled_whenever_it_crashes(tmp_path):
    trace_file = kineto_trace(tmp_path / "small.json")
    hash_before, operation_count = undisturbed(tmp_path / "calm", trace_file)
    assert hash_before
    assert operation_count > 8
    shares = [range(first, POINT_COUNT, PROCESS_COUNT) for first in range(PROCESS_COUNT)]
    homes = [tmp_path / f"home-{share.start}" for share in shares]
    with ProcessPoolExecutor(PROCESS_COUNT, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(crash, shares, homes, [trace_file] * PROCESS_COUNT))
    wrong = [complaint for complaints_of_one, _ in answers for complaint in complaints_of_one]
    assert wrong == []
    assert sum(crashed for _, crashed in answers) > POINT_COUNT * 8 // 10


def test_the_harness_would_notice(tmp_path):
    """A machine whose results were doubled, and one whose end differs, are complained about."""
    trace_file = kineto_trace(tmp_path / "small.json")
    machine = Machine(tmp_path / "home", store_of_this_process(), Fate(random.Random(1)))
    machine.until_done(trace_file)
    expected_hash = queries.run_report(machine.store, RUN)["state_hash"]
    assert list(complaints(machine, expected_hash)) == []
    machine.store.db.execute("insert into launches select * from launches limit 1")
    machine.store.db.execute("update run_ends set state_hash = 'other'")
    assert len(list(complaints(machine, expected_hash))) == 2
