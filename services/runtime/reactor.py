"""The only shape a service has: a function from a fact to the facts it causes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cascade_schemas.events import AnyEvent


class Reactor(Protocol):
    """A service's decisions, free of plumbing. Duplicated and reordered events must change nothing."""

    def react(self, event: AnyEvent) -> Iterable[AnyEvent]:
        """Events that this one causes, now."""
        ...

    def settle(self) -> Iterable[AnyEvent]:
        """Events held back to be sent together; asked for after every batch of events read from the log."""
        ...

    def restore(self, event: AnyEvent) -> None:
        """Learn an event that was already answered before a restart; says nothing."""
        ...
