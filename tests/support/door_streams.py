"""What each door of `mulligan serve` streams of a logged run, to a client that replies where the log says so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

from mulligan.run_input import RunInput
from mulligan.run_view.run_view import RunView
from mulligan.serve import ag_ui, ai_sdk
from mulligan.serve.api import event_frames
from mulligan.serve.caller import ANYBODY
from mulligan.serve.console.live_steps import live_frames
from mulligan.serve.mcp_api.progress_message import progress_message
from mulligan.serve.openai_api.chat_completions import completion_frames
from mulligan.serve.openai_api.response_events import ResponseEvents, ResponseHead
from mulligan.serve.openai_api.response_form import OPEN_RESPONSES, OPENAI, ResponseForm
from mulligan.serve.openai_api.response_stream import response_frames, response_turn_frames, stored_as_openais
from mulligan.serve.runs import Runs
from mulligan.serve.shown_files import ShownFiles
from mulligan.serve.threads import ThreadTurn
from mulligan.serve.turn_stream import open_turn
from tests.support.run_log import LoggedRuns, Reply, RunLog

Json = dict[str, Any]
Frames = list[Json]
END = {"type": "[DONE]"}
BODY = ag_ui.RunAgentInput(thread_id="t", run_id="r")
PROMPT = RunInput(agent="shop", prompt="Go.", metadata={"message_id": "m1"})


async def parsed(frames: AsyncIterator[bytes]) -> Frames:
    """The data of server-sent events: each has one line of it, and nothing else stands between them."""
    found: Frames = []
    async for frame in frames:
        *head, data, empty, rest = frame.decode().split("\n")
        assert (empty, rest) == ("", "")
        assert all(line.startswith(("id: ", "event: ")) for line in head)
        assert data.startswith("data: ")
        text = data.removeprefix("data: ")
        found.append(END if text == "[DONE]" else json.loads(text))
    return found


def runs_of(log: RunLog) -> Runs:
    return cast(Runs, LoggedRuns(log))


def head_of(log: RunLog) -> ResponseHead:
    return ResponseHead(log.run_id, log.agent, 0)


def requests_of(log: RunLog) -> Iterator[tuple[RunLog, Reply | None]]:
    """The run as it is when each request's stream ends, and the reply that the request has sent."""
    before: Reply | None = None
    for reply in log.replies:
        yield _waiting(log, reply), before
        before = reply
    yield log, before


def _waiting(log: RunLog, reply: Reply) -> RunLog:
    """The log while it waits for a reply; so do the runs below it."""
    shown = log.until(reply.length)
    below = {}
    for call_id, each in log.below.items():
        asked = [number for number, event in enumerate(each.events) if event.type == "waiting"]
        below[call_id] = each.until(asked[-1] + 1) if asked else each
    shown.below = below
    return shown


def thread_turn() -> ThreadTurn:
    return ThreadTurn("run-1", PROMPT, is_open=True)


async def _ag_ui(log: RunLog) -> Frames:
    sent: Frames = []
    since = ""
    for now, reply in requests_of(log):
        decided = reply.calls if reply else ()
        stream = await open_turn(runs_of(now), ANYBODY, log.run_id, since=since, decided=decided, interrupts=True)
        translator, returns = ag_ui.Translator(BODY, thread_turn()), reply is not None
        sent += await parsed(ag_ui.run_frames(BODY, translator, stream, snapshot=returns))
        since = stream.token
    return sent


async def ag_ui_after(log: RunLog, length: int) -> Frames:
    """What a client gets that returns when the run has had so many events."""
    stream = await open_turn(runs_of(log.until(length)), ANYBODY, log.run_id, since=None, interrupts=True)
    again = await open_turn(runs_of(log), ANYBODY, log.run_id, since=stream.token, interrupts=True)
    again.earlier = stream.earlier
    return await parsed(ag_ui.run_frames(BODY, ag_ui.Translator(BODY, thread_turn()), again, snapshot=True))


def _ai_sdk(sdk: int) -> Callable[[RunLog], Any]:
    async def frames(log: RunLog) -> Frames:
        sent: Frames = []
        since = ""
        for now, reply in requests_of(log):
            decided = reply.calls if reply else ()
            stream = await open_turn(runs_of(now), ANYBODY, log.run_id, since=since, decided=decided)
            sent += await parsed(ai_sdk.message_frames(stream, sdk, is_whole=reply is None))
            since = stream.token
        return sent

    return frames


async def ai_sdk_whole(log: RunLog, sdk: int = ai_sdk.NEWEST) -> Frames:
    """The whole message, as a client gets it that comes later."""
    stream = await open_turn(runs_of(log), ANYBODY, log.run_id)
    return await parsed(ai_sdk.message_frames(stream, sdk, is_whole=True))


async def _chat(log: RunLog) -> Frames:
    watched = _while_there_are(await runs_of(log).watch(ANYBODY, log.run_id), log)
    head = {"id": log.run_id, "created": 0, "model": log.agent}
    files = ShownFiles(runs_of(log), ANYBODY, log.run_id)
    return await parsed(completion_frames(head, watched, files, with_usage=True))


def _responses(form: ResponseForm) -> Callable[[RunLog], Any]:
    async def frames(log: RunLog) -> Frames:
        sent: Frames = []
        for now, reply in requests_of(log):
            events = ResponseEvents(head_of(log), form)
            if reply is not None:
                before = log.until(reply.length)
                async for _ in stored_as_openais(runs_of(before), ANYBODY, log.run_id, events):
                    continue
            decided = reply.calls if reply else ()
            sent += await parsed(await response_turn_frames(runs_of(now), ANYBODY, log.run_id, events, decided))
        return sent

    return frames


async def response_after(log: RunLog, after: int | None, form: ResponseForm = OPENAI) -> Frames:
    """The stream of a response from an event on, of a run that has ended."""
    events = ResponseEvents(head_of(log), form)
    return await parsed(await response_frames(runs_of(log), ANYBODY, log.run_id, events, after))


async def _mcp(log: RunLog) -> Frames:
    """The progress notifications; the stream of a call ends at a question, and that of the next one goes on."""
    view, sent = RunView(most_steps=1), []
    watched = await runs_of(log).watch(ANYBODY, log.run_id)
    async for each in _while_there_are(watched, log):
        sent += [progress_message(log.run_id, change) for change in view.add(each.event)]
    return [{"type": "progress", "message": message} for message in sent if message is not None]


async def _api(log: RunLog) -> Frames:
    watched = await runs_of(log).watch(ANYBODY, log.run_id)
    return await parsed(event_frames(_while_there_are(watched, log)))


async def _console(log: RunLog) -> Frames:
    """The page's frames: an entry is HTML, of which this is what it stands for."""
    watched = await runs_of(log).watch(ANYBODY, log.run_id)
    frames = live_frames(_while_there_are(watched, log), lambda entry: f"<{entry.type}>", lambda _: None)
    found: Frames = []
    async for frame in frames:
        head, _, data = frame.decode().partition("data: ")
        kind = next(line for line in head.split("\n") if line.startswith("event: ")).removeprefix("event: ")
        found.append({"type": kind, "data": data.replace("\ndata: ", "\n").removesuffix("\n\n")})
    return found


async def _while_there_are(watched: Any, log: RunLog) -> AsyncIterator[Any]:
    """The events that a run has now: a watcher of one that is open waits for more."""
    left = sum(len(each.entries) for each in log.tree())
    async for each in watched:
        yield each
        left -= 1
        if not left:
            return


DOORS: dict[str, Callable[[RunLog], Any]] = {
    "ag_ui": _ag_ui,
    "ai_sdk": _ai_sdk(ai_sdk.NEWEST),
    "ai_sdk_6": _ai_sdk(ai_sdk.VERSION_6),
    "chat_completions": _chat,
    "responses": _responses(OPENAI),
    "open_responses": _responses(OPEN_RESPONSES),
    "mcp": _mcp,
    "api": _api,
    "console": _console,
}
