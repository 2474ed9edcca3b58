"""What runs a simulator: start, watch, cancel. In threads of this process where a task is short or waits for a program,
in processes where it computes for minutes and must be ended in the middle.

A task's exception is that task's alone. No more tasks wait than have been agreed: who starts one too many is held up.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, TypeVar

from pebble import ProcessExpired, ProcessPool

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Cancelled(RuntimeError):
    """The task was withdrawn before it had a result."""


class WorkerLost(RuntimeError):
    """The process that worked on the task ended under it, and so did the one after it."""


class Execution(Protocol[T_co]):
    """A task that was started."""

    def result(self) -> T_co:
        """Waits for it. Raises the task's own exception, Cancelled, or WorkerLost."""

    def cancel(self) -> None:
        """Withdraw it: nobody waits for it any longer, and it is ended where it can be. Once is as good as twice."""


class Executor(Protocol):
    """Methods may be called from several threads."""

    def start(self, function: Callable[..., T], *arguments: Any) -> Execution[T]:
        """Returns at once, unless as many tasks wait as may."""

    def watch(self, hear: Callable[[Any], None], function: Callable[..., T], *arguments: Any) -> Execution[T]:
        """The same, of a function that has something to say while it works: its first argument, which it may call from
        any thread. `hear` is called with that, in the order it was said, all of it before the task has its result.
        """

    def close(self) -> None:
        """Finish what was started; nothing can be started afterwards."""


class InThreads:
    """Threads of this process. What runs cannot be ended, but is no longer waited for."""

    def __init__(self, count: int, waiting_limit: int = 1024) -> None:
        self._pool = ThreadPoolExecutor(count)
        self._room = threading.BoundedSemaphore(count + waiting_limit)

    def start(self, function: Callable[..., T], *arguments: Any) -> Execution[T]:
        self._room.acquire()
        started = self._pool.submit(function, *arguments)
        started.add_done_callback(lambda _: self._room.release())
        return _InThread(started)

    def watch(self, hear: Callable[[Any], None], function: Callable[..., T], *arguments: Any) -> Execution[T]:
        return self.start(function, hear, *arguments)

    def close(self) -> None:
        self._pool.shutdown()


class _InThread(Generic[T]):
    def __init__(self, started: Future[T]) -> None:
        self._started = started
        self._told: Future[T] = Future()  # by the task or by who cancels it, whoever is first
        started.add_done_callback(self._tell)

    def result(self) -> T:
        return self._told.result()

    def cancel(self) -> None:
        self._started.cancel()
        with suppress(InvalidStateError):  # it has ended already
            self._told.set_exception(Cancelled("the task was cancelled"))

    def _tell(self, started: Future[T]) -> None:
        with suppress(InvalidStateError):  # it was cancelled meanwhile
            if started.cancelled():
                self._told.set_exception(Cancelled("the task was cancelled"))
            elif (error := started.exception()) is not None:
                self._told.set_exception(error)
            else:
                self._told.set_result(started.result())


class InProcesses:
    """Processes of this machine, which stay for the next task. A function and its arguments must be picklable.

    A cancelled task's process is killed, and a new one takes its place. One that is killed by somebody else, or that
    kills itself, is noticed: its task is tried once more by another. What a task says must be picklable and short.
    """

    def __init__(self, count: int, waiting_limit: int = 1024) -> None:
        # spawn: a forked copy of a process with threads may hold their locks for ever.
        self._pool = ProcessPool(max_workers=count, context=multiprocessing.get_context("spawn"))
        self._room = threading.BoundedSemaphore(count + waiting_limit)

    def start(self, function: Callable[..., T], *arguments: Any) -> Execution[T]:
        self._room.acquire()
        return _InProcess(lambda: self._pool.schedule(function, args=arguments), self._room.release)

    def watch(self, hear: Callable[[Any], None], function: Callable[..., T], *arguments: Any) -> Execution[T]:
        self._room.acquire()
        wire = _Wire(hear)
        told = (wire.writer, function, *arguments)
        return _InProcess(lambda: self._pool.schedule(_saying, args=told), self._room.release, wire)

    def close(self) -> None:
        self._pool.close()  # type: ignore[no-untyped-call]  # pebble has types for most of itself
        self._pool.join()


class _InProcess(Generic[T]):
    def __init__(self, schedule: Callable[[], Any], done: Callable[[], None], wire: _Wire | None = None) -> None:
        self._schedule = schedule
        self._wire = wire
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._told: Future[T] = Future()
        self._told.add_done_callback(lambda _: done())
        self._begin(is_second=False)

    def result(self) -> T:
        return self._told.result()

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            self._running.cancel()

    def _begin(self, *, is_second: bool) -> None:
        with self._lock:
            if self._is_cancelled:
                self._end_cancelled()
                return
            self._running = self._schedule()
        self._running.add_done_callback(lambda ended: self._tell(ended, is_second=is_second))

    def _tell(self, ended: Any, *, is_second: bool) -> None:
        if ended.cancelled():
            self._end_cancelled()
            return
        error = ended.exception()
        if isinstance(error, ProcessExpired):
            if not is_second:
                self._begin(is_second=True)
                return
            error = WorkerLost(f"two processes ended while they worked on it, the last with exit code {error.exitcode}")
        if self._wire is not None:
            self._wire.end()
            error = self._wire.heard() or error
        if error is not None:  # the task's own, for whoever waits for it
            self._told.set_exception(error)
        else:
            self._told.set_result(ended.result())

    def _end_cancelled(self) -> None:
        if self._wire is not None:
            self._wire.end()  # and nobody waits until the last word is heard: who cancels may be who has to hear it
        self._told.set_exception(Cancelled("the task was cancelled"))


class _Wire:
    """A pipe from whatever process works on a task to a thread of this one, which hears what is said there.

    A process may be killed in the middle of a word. What is said is short enough for the system to write it whole or
    not at all (PIPE_BUF), so that nobody is left waiting for the rest; and no lock is shared, which would stay taken.
    """

    def __init__(self, hear: Callable[[Any], None]) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._hear = hear
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._listen, name="cascade-wire", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Nothing more is said."""
        self.writer.send(None)
        self.writer.close()

    def heard(self) -> Exception | None:
        """Waits until everything is. What hearing it raised, as if it were the task's own."""
        self._thread.join()
        return self._error

    def _listen(self) -> None:
        with self._reader:
            while (said := self._reader.recv()) is not None:
                if self._error is None:
                    try:
                        self._hear(said[0])
                    except Exception as error:  # noqa: BLE001 - kept for whoever waits for the task
                        self._error = error


def _saying(writer: Connection, function: Callable[..., T], *arguments: Any) -> T:
    """In the task's process."""
    lock = threading.Lock()

    def say(what: Any) -> None:
        with lock:
            writer.send((what,))

    with writer:
        return function(say, *arguments)
