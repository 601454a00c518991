"""The text of a background response while the model writes it: each poll reads it for a while, for the run's followers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from temporalio import activity

from mulligan.activities.heartbeat import Heartbeat
from mulligan.activities.models.live_text import LiveTextHeartbeats
from mulligan.activities.models.openai._responses_assembler import FINAL_EVENTS, TEXT_EVENTS
from mulligan.activities.models.openai.openai_responses import sequence_of
from mulligan.activities.models.protocol import AnswersInBackground, Unavailable
from mulligan.client.live_pace import LivePace
from mulligan.errors import ModelRequestError
from mulligan.live.publisher import Publisher
from mulligan.wire.background import ReadResponse
from mulligan.wire.event_types import LIVE_TEXT, LiveText, TextCursor
from mulligan.wire.live_text_in import live_text_in

OPEN_TIMEOUT, LONGEST = 10.0, 20.0
"""Seconds until the stream has begun, and for which a poll reads it at most: the run sees a request to stop after that."""
PAUSE, LONGEST_INTERVAL = 2.0, 3.0
"""A poll stops to read if no text comes for PAUSE seconds beyond the interval of heartbeats: the model thinks, and
followers, who look at least that often, have all text. The interval counts as LONGEST_INTERVAL seconds at most."""
NOT_FOUND = 404


@dataclass(frozen=True)
class ReadText:
    """How a poll has read: `cursor` says where the next one continues; None: the provider does not stream this response.

    `is_writing`: whether the model was writing when the poll stopped.
    """

    cursor: TextCursor | None
    is_writing: bool = False


class BackgroundText:
    """The text of one response, in one poll. `pace`: of the heartbeats with text. `publisher`: of the live channel."""

    def __init__(
        self,
        request: ReadResponse,
        cursor: TextCursor,
        heartbeat: Heartbeat,
        pace: LivePace,
        publisher: Publisher | None = None,
    ) -> None:
        sent = _sent_before(request, cursor)
        assert sent.cursor is not None
        self._response_id, self._cursor = request.id, sent.cursor
        where = (request.where.conversation, request.step, request.attempt)
        self._live = LiveTextHeartbeats(heartbeat, pace, *where, sent)
        if sent.text:
            heartbeat.send_live({LIVE_TEXT: sent.model_dump()})
        self._publisher = publisher
        self._pause = min(pace.slowest, LONGEST_INTERVAL) + PAUSE

    async def read(self, provider: AnswersInBackground) -> ReadText:
        """Send the text to the run's followers as it comes, until the response ends, the model pauses, or LONGEST is over.

        A connection that fails counts as a pause. Events that a server repeats are left out.
        """
        with self._live.published(self._publisher):
            return await self._read(provider)

    async def _read(self, provider: AnswersInBackground) -> ReadText:
        clock, end = asyncio.get_running_loop().time, 0.0
        is_writing = False
        try:
            async with asyncio.timeout(OPEN_TIMEOUT) as limit:
                events = provider.background_events(self._response_id, self._cursor.sequence, OPEN_TIMEOUT)
                async with events as stream:
                    end = clock() + LONGEST
                    limit.reschedule(clock() + self._pause)
                    async for event in stream:
                        if sequence_of(event) is None:
                            return ReadText(None)  # it is the response itself, or its events have no numbers
                        if self._write(event):
                            limit.reschedule(min(clock() + self._pause, end))
                        if event.get("type") in FINAL_EVENTS:
                            break
        except TimeoutError:
            is_writing = 0.0 < end <= clock()
        except ModelRequestError as refused:
            if refused.status != NOT_FOUND:  # what is not found is looked for again: it may be too new
                return ReadText(None)
        except Unavailable:
            pass
        self._live.flush()
        if is_writing:
            # Followers read the text from this activity's heartbeats: they must have seen it before the activity ends.
            await asyncio.sleep(self._pause)
        return ReadText(self._cursor.model_copy(update={"length": self._live.length}), is_writing)

    def _write(self, event: dict[str, Any]) -> bool:
        """Write the text of an event. Returns whether it has any."""
        number, delta, message = sequence_of(event), event.get("delta"), event.get("output_index")
        if number is None or number <= self._cursor.sequence:
            return False
        changed: dict[str, Any] = {"sequence": number}
        has_text = event.get("type") in TEXT_EVENTS and isinstance(delta, str)
        if has_text and isinstance(message, int):
            if self._cursor.message not in (None, message):
                self._live.write("\n\n")  # as the messages of an answer are joined in its text
            changed["message"] = message
        if has_text:
            self._live.write(str(delta))
        self._live.cursor = self._cursor = self._cursor.model_copy(update=changed)
        return has_text


def _sent_before(request: ReadResponse, cursor: TextCursor) -> LiveText:
    """The text that was sent by an attempt of this poll whose worker died. In a first attempt: none, from `cursor` on."""
    text = live_text_in(activity.info().heartbeat_details)
    if text is not None and text.cursor is not None and text.attempt == request.attempt:
        return text
    start = {"conversation": request.where.conversation, "step": request.step, "attempt": request.attempt}
    return LiveText(**start, start=cursor.length, text="", cursor=cursor)
