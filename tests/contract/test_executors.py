"""What every executor promises: order, a task's failure its own, cancellation, a bounded queue, and an end in order."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from services.runtime.executor import Cancelled, InProcesses, InThreads, WorkerLost

LONG_S = 60.0


def double(number):
    return 2 * number


def fail(words):
    raise ValueError(words)


def rest(seconds):
    time.sleep(seconds)
    return seconds


def note(path, seconds):
    """Says which process works on it, then works."""
    with path.open("a") as out:
        out.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return "done"


def speak(say, count, seconds=0.0):
    """Says numbers from several threads at once, then works."""
    threads = [threading.Thread(target=say, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("worked")
    time.sleep(seconds)
    return count


def speak_and_die(say, path):
    say("before")
    return die(path)


def die(path):
    """Ends its own process, the first time or always, as `path` is there or not."""
    if path is None or not path.exists():
        if path is not None:
            path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "the second time"


@pytest.fixture(params=[InThreads, InProcesses])
def executor(request):
    made = request.param(2, waiting_limit=2)
    yield made
    made.close()


def test_each_task_has_its_own_result_whatever_ends_first(executor):
    slow, fast = executor.start(rest, 0.5), executor.start(double, 21)
    assert (fast.result(), slow.result()) == (42, 0.5)
    started = []
    for number in range(20):  # more than may wait: they are taken as others end
        started.append(executor.start(double, number))
    assert [one.result() for one in started] == [2 * number for number in range(20)]


def test_a_tasks_exception_is_that_tasks_alone(executor):
    wrong, right = executor.start(fail, "what was wrong"), executor.start(double, 1)
    with pytest.raises(ValueError, match="what was wrong"):
        wrong.result()
    assert right.result() == 2
    assert executor.start(double, 2).result() == 4


def test_a_cancelled_task_is_no_longer_waited_for_and_others_go_on(executor):
    executor.start(double, 0).result()  # a process takes a moment to start
    others = executor.start(rest, 1.0)
    running = executor.start(rest, 2.0 if isinstance(executor, InThreads) else LONG_S)
    waiting = executor.start(double, 3)
    time.sleep(0.3)
    began_s = time.monotonic()
    running.cancel()
    running.cancel()
    waiting.cancel()
    for one in (running, waiting):
        with pytest.raises(Cancelled):
            one.result()
    assert time.monotonic() - began_s < 2
    assert others.result() == 1.0
    assert executor.start(double, 4).result() == 8


def test_cancelling_what_has_ended_changes_nothing(executor):
    ended = executor.start(double, 5)
    assert ended.result() == 10
    ended.cancel()
    assert ended.result() == 10


def test_who_starts_more_than_may_wait_is_held_up_until_one_ends(executor):
    running = [executor.start(rest, 1.5) for _ in range(2)]
    waiting = [executor.start(double, number) for number in range(2)]
    began = threading.Event()
    late = []

    def start_one_more():
        began.set()
        late.append(executor.start(double, 9))

    thread = threading.Thread(target=start_one_more)
    thread.start()
    began.wait()
    thread.join(0.5)
    assert thread.is_alive(), "it was not held up"
    thread.join(30)
    assert late[0].result() == 18
    assert [one.result() for one in (*running, *waiting)] == [1.5, 1.5, 0, 2]


def test_what_a_task_says_is_heard_whole_and_before_its_result(executor):
    heard = [[], []]
    started = [executor.watch(heard[place].append, speak, 2000) for place in range(2)]
    for one, said in zip(started, heard, strict=True):
        assert one.result() == 2000
        assert sorted(said[:-1]) == list(range(2000))
        assert said[-1] == "worked"


def test_what_a_task_says_is_heard_while_it_works(executor):
    heard = threading.Event()
    started = executor.watch(lambda said: said == "worked" and heard.set(), speak, 3, 3.0)
    assert heard.wait(30)
    began_s = time.monotonic()
    started.cancel()
    with pytest.raises(Cancelled):
        started.result()
    assert time.monotonic() - began_s < 2


def test_who_cannot_hear_fails_that_task_alone(executor):
    started = executor.watch(fail, speak, 0)
    with pytest.raises(ValueError, match="worked"):
        started.result()
    assert executor.start(double, 6).result() == 12


def test_what_two_processes_say_of_one_task_is_all_heard(tmp_path):
    executor = InProcesses(1)
    heard = []
    try:
        assert executor.watch(heard.append, speak_and_die, tmp_path / "once").result() == "the second time"
        assert heard == ["before", "before"]
    finally:
        executor.close()


@pytest.mark.parametrize("kind", [InThreads, InProcesses])
def test_closing_finishes_what_was_started(kind):
    executor = kind(1, waiting_limit=4)
    started = [executor.start(rest, 0.2), executor.start(double, 7)]
    executor.close()
    assert [one.result() for one in started] == [0.2, 14]


def test_a_killed_process_is_noticed_and_its_task_done_by_another(tmp_path):
    executor = InProcesses(1)
    try:
        said = tmp_path / "said"
        started = executor.start(note, said, 1.5)
        while not said.exists() or not said.read_text().endswith("\n"):
            time.sleep(0.05)
        os.kill(int(said.read_text()), signal.SIGKILL)
        assert started.result() == "done"
        assert len(set(said.read_text().split())) == 2
        assert executor.start(die, tmp_path / "once").result() == "the second time"
    finally:
        executor.close()


def test_a_task_that_kills_every_process_is_given_up_and_the_next_is_done():
    executor = InProcesses(1)
    try:
        with pytest.raises(WorkerLost, match="exit code -9"):
            executor.start(die, None).result()
        assert executor.start(double, 8).result() == 16
    finally:
        executor.close()


def test_the_process_of_a_cancelled_task_is_gone(tmp_path):
    executor = InProcesses(1)
    try:
        said = tmp_path / "said"
        started = executor.start(note, said, LONG_S)
        while not said.exists() or not said.read_text().endswith("\n"):
            time.sleep(0.05)
        process = int(said.read_text())
        started.cancel()
        with pytest.raises(Cancelled):
            started.result()
        deadline = time.monotonic() + 5
        while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{process}").exists()
    finally:
        executor.close()
