"""What the user is told: each sentence once, on standard error, never more than that."""

from __future__ import annotations

import sys
import threading

_said: dict[str, None] = {}
_lock = threading.Lock()


def say(sentence: str) -> None:
    """Tell the user a sentence; a second time it is swallowed. Never raises."""
    with _lock:
        if sentence in _said:
            return
        _said[sentence] = None
    try:
        print(f"cascade-profiler: {sentence}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # no standard error: the sentence is still in `said`


def said() -> tuple[str, ...]:
    """Everything this process has told, in order."""
    with _lock:
        return tuple(_said)


def forget() -> None:
    """Begin anew: a second trace in one process tells again."""
    with _lock:
        _said.clear()
