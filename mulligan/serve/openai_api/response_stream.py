"""The stream of a response: the events of its run, from the first one, after one that the client has, or of one request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from mulligan.client.watch_run import WatchedEvent
from mulligan.serve.caller import Caller
from mulligan.serve.http_protocol import DONE, frame
from mulligan.serve.openai_api.request_fields import invalid
from mulligan.serve.openai_api.response_events import ResponseEvents
from mulligan.serve.openai_api.sequence import read_up_to
from mulligan.serve.problems import problem_of
from mulligan.serve.runs import NO_END, Runs
from mulligan.serve.shown_files import ShownFiles
from mulligan.serve.turn_stream import WaitingCall, open_turn, waits_for_person
from mulligan.wire.event_types import SubRunEvent


async def stored_as_openais(
    runs: Runs, caller: Caller, run_id: str, events: ResponseEvents, until: int | None = None
) -> AsyncIterator[dict[str, Any]]:
    """OpenAI's events of the stored events, of all or up to the offset `until`."""
    count, files = 0, ShownFiles(runs, caller, run_id)
    async for each in runs.stored_events(caller, run_id, NO_END if until is None else until + 1):
        for event in events.translate(await files.within(each)):
            yield event
        count = getattr(each, "offset", 0) + 1
    if until is not None and count <= until:
        raise invalid("starting_after", "is not the sequence_number of an event of this response.")


async def response_frames(
    runs: Runs, caller: Caller, run_id: str, events: ResponseEvents, after: int | None = None
) -> AsyncIterator[bytes]:
    """The stream of a response to the end of its run. What the client has not read of the stored events is read before the
    stream begins.
    """
    read = read_up_to(after) if after is not None else None
    begun = list(events.begin())
    since = ""
    if read is not None and after is not None:
        begun += [event async for event in stored_as_openais(runs, caller, run_id, events, read.offset)]
        begun += events.take_over(after)
        begun = [event for event in begun if event["sequence_number"] > after]
        since = read.token
    watched = None if events.end is not None else await runs.watch(caller, run_id, since)
    return _frames(begun, watched, events, lambda: runs.pending(caller, run_id), ShownFiles(runs, caller, run_id))


async def response_turn_frames(
    runs: Runs, caller: Caller, run_id: str, events: ResponseEvents, decided: Collection[WaitingCall]
) -> AsyncIterator[bytes]:
    """The stream of a request that starts a run, or replies to its calls: it ends where the run waits for people only.

    `events`: has read what the client of a reply has.
    """
    since = str(events.read) if decided else ""
    turn = await open_turn(runs, caller, run_id, since=since, decided=decided)
    events.leave_out(events.finished_items())
    begun = [*events.begin(), *events.reopened()]
    files = ShownFiles(runs, caller, run_id)
    return _frames(begun, turn.live(), events, lambda: runs.pending(caller, run_id), files)


async def _frames(
    begun: Iterable[dict[str, Any]],
    watched: AsyncIterator[WatchedEvent] | None,
    events: ResponseEvents,
    read_pending: Callable[[], Awaitable[list[dict[str, Any]]]],
    files: ShownFiles,
) -> AsyncIterator[bytes]:
    """OpenAI's events of what is watched: a run to its end, or a turn to where it waits for people only. The last one is the
    error if the stream cannot go on.
    """
    number = 0
    for event in begun:
        number = event["sequence_number"]
        yield frame(event, event["type"])
    if watched is not None:
        async with aclosing(watched) as stream:  # type: ignore[type-var]
            try:
                async for each in stream:
                    sent = list(events.translate(await files.within(each.event), each.position))
                    if isinstance(each.event, SubRunEvent) and waits_for_person(each.event):
                        sent += events.ask_below(await read_pending())
                    for event in sent:
                        number = event["sequence_number"]
                        yield frame(event, event["type"])
                    if events.end is not None:
                        break
                else:
                    paused = events.paused(await read_pending())
                    yield frame(paused, paused["type"])
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told that the stream ends
                yield frame(events.form.error_event(problem_of(error), number + 1), "error")
    if events.form.is_open:
        yield DONE


def broken_frames(events: ResponseEvents, error: Exception) -> Iterator[bytes]:
    """The stream of a response that cannot be read now."""
    number = 0
    for event in events.begin():
        number = event["sequence_number"]
        yield frame(event, event["type"])
    yield frame(events.form.error_event(problem_of(error), number + 1), "error")
    if events.form.is_open:
        yield DONE
