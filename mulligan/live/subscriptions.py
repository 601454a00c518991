"""Who watches which run in this process, and the connections to the workers that tell of it.

A transport gives links: something that takes frames for workers, and whose frames it hands to `Subscriptions.take`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from mulligan.wire.live_frames import CallPlace, ServerFrame, Unwatch, Watch, WorkerFrame, workflow_of


class Listener(Protocol):
    """What hears the frames of a run."""

    @property
    def place(self) -> CallPlace | None:
        """The newest call that it has heard of, and how far."""

    def take_frame(self, frame: WorkerFrame, source: object, now: float) -> bool:
        """Take a frame. False: something before it is missing."""

    def lose(self, source: object) -> None:
        """A source of frames is gone."""


class Link(Protocol):
    """A connection to one or more workers."""

    def send(self, frame: ServerFrame) -> None:
        """Send a frame, some time."""


@dataclass(eq=False)
class Subscription:
    """A run that is watched. `changed` is set when the listener has heard something."""

    listener: Listener
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Subscriptions:
    """The runs that are watched in this process. On one event loop."""

    def __init__(self, connect: Callable[[Subscriptions], asyncio.Task[None] | None]) -> None:
        """`connect`: begins to look for workers, as a task that is cancelled when no run is watched any more; None: there is
        no channel.
        """
        self._connect = connect
        self._task: asyncio.Task[None] | None = None
        self._watched: dict[str, set[Subscription]] = {}
        self._links: set[Link] = set()

    @contextmanager
    def watching(self, workflow: str, listener: Listener) -> Iterator[Subscription]:
        """Let the listener hear of a run while the block runs."""
        subscription = Subscription(listener)
        those = self._watched.setdefault(workflow, set())
        those.add(subscription)
        if self._task is None and len(self._watched) == 1 and len(those) == 1:
            self._task = self._connect(self)
        self._send(Watch(workflow=workflow))
        try:
            yield subscription
        finally:
            those.discard(subscription)
            if not those and self._watched.get(workflow) is those:
                del self._watched[workflow]
                self._send(Unwatch(workflow=workflow))
            if not self._watched and self._task is not None:
                self._task.cancel()
                self._task = None

    def add(self, link: Link) -> None:
        """A link has begun: it is told which runs are watched."""
        self._links.add(link)
        for workflow, those in self._watched.items():
            have = next(iter(those)).listener.place if len(those) == 1 else None
            link.send(Watch(workflow=workflow, have=have))

    def take(self, frame: WorkerFrame, link: Link) -> None:
        """A link has brought a frame."""
        now, workflow = asyncio.get_running_loop().time(), workflow_of(frame)
        for each in self._watched.get(workflow, ()):
            if not each.listener.take_frame(frame, link, now):
                link.send(Watch(workflow=workflow, have=each.listener.place))
            each.changed.set()

    def remove(self, link: Link) -> None:
        """A link has ended."""
        self._links.discard(link)
        for those in self._watched.values():
            for each in those:
                each.listener.lose(link)
                each.changed.set()

    def _send(self, frame: ServerFrame) -> None:
        for link in self._links:
            link.send(frame)
