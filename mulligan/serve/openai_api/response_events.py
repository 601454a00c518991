"""The events of a run as those of a Responses API, and the run as a Response, in OpenAI's form or that of Open Responses.

Both come from the same translation of the stored events. Nothing is kept: another replica that reads the run makes the same
items, and the same events with the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.client.event_position import START, Position
from mulligan.content import Image, shown_content
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import CallView, StepView, WrittenCallView
from mulligan.serve.openai_api import sequence
from mulligan.serve.openai_api.item_ids import (
    APPROVAL_PREFIX,
    CALL_PREFIX,
    IMAGE_PREFIX,
    MESSAGE_PREFIX,
    QUESTION_PREFIX,
    item_id,
)
from mulligan.serve.openai_api.response_form import OPENAI, ResponseForm
from mulligan.serve.openai_api.url_citations import url_citations
from mulligan.serve.turn_stream import VOID_CALL, WaitingCall
from mulligan.values import Citation, Usage
from mulligan.wire.event_types import (
    AnswerRejected,
    Event,
    RunEnded,
    SubRunEvent,
    TextDelta,
    TextVoid,
    ToolInputDelta,
    Waiting,
)

_NOTHING_ASKED = {"type": ""}
_LIMITS = {"max_steps", "max_tokens", "max_cost", "max_repeats", "max_history", "truncated"}
Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseHead:
    """What a Response has from the start of its run."""

    id: str
    agent: str
    created: float
    metadata: dict[str, str] = field(default_factory=dict)
    previous: str | None = None
    conversation: str = ""
    instructions: str | None = None
    """The client's."""


@dataclass
class _Numbering:
    """Where the events that are made now belong: after a stored event, or in live text."""

    offset: int = 0
    live: Position | None = None

    def number(self, slot: int, seen: int = 0, *, is_call: bool = False) -> int:
        if self.live is not None:
            return sequence.number_of_live(self.live, slot, seen, is_call=is_call)
        return sequence.number_of_stored(self.offset, slot)


@dataclass
class _Item:
    """The item of a call, and its place in the output."""

    json: Json
    index: int


class ResponseEvents:
    """Translates the events of one run, from its first one on."""

    def __init__(self, head: ResponseHead, form: ResponseForm = OPENAI) -> None:
        self._head = head
        self.form = form
        self._at = _Numbering()
        self._next_index = 0
        self._items: list[Json] = []
        """Those of the Response: without void ones."""
        self.view = RunView(joins_gaps=False)
        self._message: tuple[int, Json] | None = None
        self._calls: dict[CallView, _Item] = {}
        self._written: dict[WrittenCallView, _Item] = {}
        """The items of calls that the model is writing, which become void or are announced."""
        self._announced: dict[CallView, _Item] = {}
        """The items of calls that were announced while the model wrote them, and have not begun."""
        self._void_calls: list[str] = []
        self._after = -1
        """The number of the event that the client has read."""
        self._asking: dict[CallView, Json] = {}
        """The newest item with which a call has asked a person."""
        self._waiting: dict[str, Json] = {}
        self._left_out: frozenset[str] = frozenset()
        self._below: dict[str, Json] = {}
        """The items that ask for sub-agents, by the id of the call."""
        self._slot_below = sequence.FIRST_SLOT_BELOW
        self._files: list[Json] = []
        """The files that the model has made, and what was not kept of them."""

    @property
    def end(self) -> RunEnded | None:
        """The last event, once it was translated."""
        return self.view.end

    @property
    def read(self) -> int:
        """How many stored events were translated: the offset of the next one."""
        return self._at.offset + 1 if self.view.started else 0

    def finished_items(self) -> frozenset[str]:
        """The ids of the messages and calls that the Response has now, without those that have not ended."""
        results = {"message", self.form.call, self.form.image}
        finished = (item for item in self._items if item["type"] in results and item["status"] != "in_progress")
        return frozenset(item["id"] for item in finished)

    def leave_out(self, ids: frozenset[str]) -> None:
        """Leave items out of the Response: its client has them from an earlier request."""
        self._left_out = ids

    def reopened(self) -> Iterator[Json]:
        """The items of calls that have not ended: the client's next stream begins with them, and has numbers of its own."""
        self._next_index = 0
        for item in self._calls.values():
            if item.json["status"] == "in_progress":
                item.index = self._new_index()
                self._slot_below += 1
                yield self._item_event("added", self._slot_below - 1, item.index, item.json)

    def paused(self, pending: Iterable[Json]) -> Json:
        """The last event of a stream that ends where the run waits for people only. `pending`: the calls that wait."""
        waiting = {WaitingCall(each["call_id"], each.get("id", "")).id for each in pending}
        self._below = {call: item for call, item in self._below.items() if call in waiting}
        self._slot_below += 1
        return self._event("response.completed", self._slot_below - 1, response=self.to_json())

    def begin(self) -> Iterator[Json]:
        """The events with which each response begins."""
        for slot, kind in enumerate(("response.created", "response.in_progress")):
            started = {**self.to_json(), "status": "in_progress", "output": []}
            yield {"type": kind, "sequence_number": sequence.number_of_stored(0, slot), "response": started}

    def translate(self, event: Event, position: Position = START) -> Iterator[Json]:
        """The events of OpenAI that one of ours becomes. `position`: of the text that is being written."""
        if isinstance(event, SubRunEvent):
            return
        if isinstance(event, (TextDelta, ToolInputDelta, TextVoid)):
            self._at.live = position
        elif (offset := getattr(event, "offset", None)) is not None:
            self._slot_below = self._slot_below if offset == self._at.offset else sequence.FIRST_SLOT_BELOW
            self._at = _Numbering(offset)
        for change in self.view.add(event):
            for each in self._translated(change):
                if (number := each["sequence_number"]) > self._after:
                    if self._at.live is not None and "delta" in each:
                        each["delta"] = sequence.cut_delta(each["delta"], number, self._after)
                    yield each

    def _translated(self, change: changes.Change) -> Iterator[Json]:
        match change:
            case changes.TextOpened():
                yield from self._open(change)
            case changes.TextExtended():
                yield self._text_event("delta", sequence.DELTA, change.seen, delta=change.text)
            case changes.TextClosed(step, text, is_void):
                slot = sequence.CLOSE_VOID if is_void else sequence.CLOSE_TEXT
                phase = "commentary" if step.calls else "final_answer"
                yield from self._close(text, slot, phase, [] if is_void else step.citations, is_void=is_void)
            case changes.StepAnswered(step):
                yield from self._images(step)
            case changes.InputOpened() | changes.InputExtended() | changes.InputVoid() if change.call.is_announced:
                yield from self._of_written(change)
            case changes.CallAnnounced(call, written) if written in self._written:
                self._announced[call] = self._written.pop(written)
            case changes.Noted(AnswerRejected(), step):
                self._leave_out_answer_of(step)
            case changes.Ended():
                yield from self._ended(change.end)
            case _:
                yield from self._of_call(change)

    def _of_call(self, change: changes.Change) -> Iterator[Json]:
        match change:
            case changes.WaitOpened():
                yield from self._wait(change.call, change.wait.asked)
            case changes.WaitEnded():
                self._decided(change.call)
            case changes.CallRunning():
                yield from self._announce(change.call)
                yield from self._arguments(change.call, _text_of(change.call.arguments))
            case changes.CallSettled():
                yield from self._settled(change.call)

    def _of_written(self, change: changes.InputChange) -> Iterator[Json]:
        match change:
            case changes.InputOpened(written):
                yield from self._begin_written(written)
            case changes.InputExtended(written, text):
                yield self._piece_of_call(written, text)
            case changes.InputVoid(written):
                yield from self._void(written)

    def take_over(self, number: int) -> Iterator[Json]:
        """Continue after the event with a number, which the client got from another replica."""
        read, self._slot_below = sequence.read_up_to(number), sequence.next_slot_below(number)
        self._after = number
        if read.attempt and not read.is_call:
            self._at.live = Position(read.offset + 1, read.attempt, read.seen)
            yield from self._open(self.view.take_over(read.attempt, read.seen))

    def to_json(self) -> Json:
        """The Response as it is now."""
        status, details, error = self._status()
        end = self.end.result if self.end else None
        usage = end.usage if end else self.view.usage
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": int(self._head.created),
            "completed_at": int(self.end.at.timestamp()) if self.end and status == "completed" else None,
            "status": status,
            "background": True,
            "error": error,
            "incomplete_details": details,
            "instructions": self._head.instructions,
            "max_output_tokens": None,
            "metadata": self._head.metadata,
            "model": self._head.agent,
            "output": self._output(),
            "parallel_tool_calls": True,
            "conversation": {"id": self._head.conversation},
            "previous_response_id": self._head.previous,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": True,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            **self.form.fields,
            "usage": usage_json(usage) if self.end else None,
            "mulligan": {
                "status": self.view.status,
                "waiting_for": list(self._waiting.values()),
                "trace_id": end.trace_id if end else None,
                "cost": end.cost if end else None,
                **({"files": self._files} if self._files else {}),
            },
        }

    def _output(self) -> list[Json]:
        """The items. A response that waits for a person has no unfinished calls: clients would look for their results."""
        unfinished = "in_progress" if self._waiting else ""
        items = (item for item in self._items if item["id"] not in self._left_out)
        items = (item for item in items if item.get("status", "completed") != unfinished)
        return [dict(item) for item in (*items, *self._below.values())]

    # Text

    def _open(self, opened: changes.TextOpened) -> Iterator[Json]:
        suffix = f"_{opened.number}" if opened.number > 1 else ""
        yield from self._open_message(f"{opened.step.number}{suffix}")

    def _open_message(self, name: str) -> Iterator[Json]:
        item: Json = {"id": item_id(MESSAGE_PREFIX, name, self._head.id), "type": "message", "role": "assistant"}
        item |= {"status": "in_progress", "content": []}
        self._message = self._new_index(), item
        yield self._item_event("added", sequence.OPEN_TEXT, *self._message)
        yield self._part_event("added", sequence.OPEN_TEXT + 1, "")

    def _close(
        self, text: str, slot: int, phase: str, citations: Sequence[Citation] = (), *, is_void: bool = False
    ) -> Iterator[Json]:
        assert self._message is not None
        index, item = self._message
        yield self._text_event("done", slot, 0, text=text)
        yield self._part_event("done", slot + 1, text, citations)
        status = "incomplete" if is_void else "completed"
        item = {**item, "status": status, "content": [_output_text(text, citations)], "phase": phase}
        yield self._item_event("done", slot + 2, index, item)
        self._message = None
        if not is_void:
            self._items.append(item)

    def _images(self, step: StepView) -> Iterator[Json]:
        """The images that the model has made. Other files are named by the Response: OpenAI has no item for them."""
        images = [part for part in step.files if isinstance(part, Image)]
        for number, image in enumerate(images[: sequence.MOST_FILES]):
            item = self.form.image_item(item_id(IMAGE_PREFIX, f"{step.number}_{number + 1}", self._head.id), image)
            self._items.append(item)
            yield from self._added_and_done(item, sequence.FIRST_FILE + 2 * number)
        self._files += [part.model_dump(mode="json") for part in shown_content(step.files)]

    def _leave_out_answer_of(self, step: StepView | None) -> None:
        """Take a rejected answer out of the output: what clients parse as the answer has one text, the accepted one."""
        texts = [item for item in self._items if item["type"] != self.form.image]
        if step is not None and not step.calls and texts and texts[-1].get("phase") == "final_answer":
            self._items.remove(texts[-1])

    def _text_event(self, kind: str, slot: int, seen: int, **fields: str) -> Json:
        assert self._message is not None
        index, item = self._message
        place = {"item_id": item["id"], "output_index": index, "content_index": 0, "logprobs": [], **fields}
        return self._event(f"response.output_text.{kind}", slot, seen, **place)

    def _part_event(self, kind: str, slot: int, text: str, citations: Sequence[Citation] = ()) -> Json:
        assert self._message is not None
        index, item = self._message
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        return self._event(f"response.content_part.{kind}", slot, **place, part=_output_text(text, citations))

    # Calls

    def _announce(self, call: CallView) -> Iterator[Json]:
        """Begin the item of a call, once it is known that the call does not wait for a person (any more)."""
        question = self._asking.get(call, _NOTHING_ASKED)
        item = self._announced.get(call)
        if item is None:
            item = self._new_item(call.id, call.name)
            item.json["approval_request_id"] = question["id"] if question["type"] == self.form.approval else None
            yield self._item_event("added", 0, item.index, item.json)
            yield self._call_event(".in_progress", 1, item)
        item.json["arguments"] = call.raw_arguments
        self._calls[call] = item
        self._items.append(item.json)

    def _new_item(self, call_id: str, name: str) -> _Item:
        uses = sum(each.id == call_id for each in self._calls) + self._void_calls.count(call_id)  # models use ids again
        name_of_id = f"{call_id}_{uses + 1}" if uses else call_id
        added = self.form.call_item(item_id(CALL_PREFIX, name_of_id, self._head.id), name, "", "in_progress")
        return _Item(added, self._new_index())

    def _begin_written(self, call: WrittenCallView) -> Iterator[Json]:
        """Begin the item of a call that the model is writing. The Response has it once it runs, or has its result."""
        item = self._written[call] = self._new_item(call.id, call.name)
        seen = self._at.live.seen if self._at.live else 0
        event = self._item_event("added", sequence.DELTA, item.index, item.json)
        yield {**event, "sequence_number": self._at.number(sequence.DELTA, seen - 1, is_call=True)}
        yield self._live_event(".in_progress", item)

    def _piece_of_call(self, call: WrittenCallView, text: str) -> Json:
        """A piece of a call's arguments, while the model writes them or in its whole answer."""
        if self._at.live is not None:
            return self._live_event("_arguments.delta", self._written[call], delta=text)
        slot = sequence.REST_OF_CALL + call.index
        return self._call_event("_arguments.delta", slot, self._written[call], delta=text)

    def _live_event(self, kind: str, item: _Item, **fields: str) -> Json:
        seen = self._at.live.seen if self._at.live else 0
        event = self._call_event(kind, sequence.DELTA, item, **fields)
        return {**event, "sequence_number": self._at.number(sequence.DELTA, seen, is_call=True)}

    def _void(self, call: WrittenCallView) -> Iterator[Json]:
        """End the item of a call that will not be carried out. The Response never has it."""
        item, slot = self._written.pop(call), sequence.VOID_CALL + 2 * call.index
        self._void_calls.append(call.id)
        item.json |= {"status": "failed", "arguments": call.text, "error": self.form.call_error(VOID_CALL)}
        yield self._call_event(".failed", slot, item)
        yield self._item_event("done", slot + 1, item.index, item.json)

    def _arguments(self, call: CallView, arguments: str) -> Iterator[Json]:
        """The arguments with which a call runs; those that the model wrote, if it never runs."""
        item = self._calls[call]
        if self._announced.pop(call, None) is None:
            yield self._call_event("_arguments.delta", 2, item, delta=arguments)
        elif _loaded(call.raw_arguments) == _loaded(arguments):
            arguments = call.raw_arguments  # as the pieces were, but for white space
        item.json["arguments"] = arguments
        yield self._call_event("_arguments.done", 3, item, arguments=arguments)

    def _settled(self, call: CallView) -> Iterator[Json]:
        if call not in self._calls:
            yield from self._announce(call)
            yield from self._arguments(call, call.raw_arguments)
        item, error, result = self._calls[call], call.error, call.result
        item.json["status"] = "failed" if error else "completed"
        if error and result:
            item.json["error"] = self.form.call_error(result.text)
        elif result:
            item.json["output"] = result.text
        item.json["mulligan"] = {
            "error_kind": error.kind if error else None,
            "attempts": call.attempts,
            "repairs": [repair.model_dump(mode="json") for repair in call.repairs],
        }
        yield self._call_event(f".{item.json['status']}", 4, item)
        yield self._item_event("done", 5, item.index, dict(item.json))

    def _wait(self, call: CallView, waiting: Waiting) -> Iterator[Json]:
        """A person is asked by an item: an approval request, or for a question a call that the client answers."""
        item = self._asking_item(waiting.kind, (call.id, self._head.id), call.name, waiting.arguments, waiting.text)
        self._asking[call] = item
        self._waiting[call.id] = {"kind": waiting.kind, "call_id": call.id, "text": waiting.text}
        self._items.append(item)
        yield from self._added_and_done(item, 0)

    def _decided(self, call: CallView) -> None:
        """A call does not wait any more. A client would ask a person again, or run a question as a call of its own."""
        self._waiting.pop(call.id, None)
        self._items = [item for item in self._items if item is not self._asking.get(call)]

    def ask_below(self, pending: Iterable[Json]) -> Iterator[Json]:
        """Ask for sub-agents, by entries of `pending` with the id of a run below. What was asked already is left out.

        Such items are there while they wait only: the events of sub-agents are not in the run, so another replica that reads
        it later has no place for them.
        """
        for each in pending:
            call = WaitingCall(each["call_id"], "" if each.get("id") == self._head.id else each.get("id", ""))
            if not call.sub_run or call.id in self._below or self._slot_below + 1 >= sequence.LAST_SLOT:
                continue
            place = (call.call_id, call.sub_run)
            item = self._asking_item(each["kind"], place, each["tool"], each["arguments"], each["text"])
            self._below[call.id] = item
            self._waiting[call.id] = {"kind": each["kind"], "call_id": call.id, "text": each["text"]}
            yield from self._added_and_done(item, self._slot_below)
            self._slot_below += 2

    def _added_and_done(self, item: Json, slot: int) -> Iterator[Json]:
        index = self._new_index()
        yield self._item_event("added", slot, index, item)
        yield self._item_event("done", slot + 1, index, item)

    def _asking_item(self, kind: str, place: tuple[str, str], name: str, arguments: Any, text: str) -> Json:
        """The item with which a call waits: an approval request, or for a question a call that the client answers.

        `place`: the id of the call, and of its run.
        """
        if kind == "approval":
            return self.form.approval_item(item_id(APPROVAL_PREFIX, *place), name, _text_of(arguments))
        item = {"id": item_id(QUESTION_PREFIX, *place), "type": "function_call", "status": "completed"}
        item["call_id"] = item_id("", *place)
        return {**item, "name": name, "arguments": json.dumps({"question": text}, ensure_ascii=False)}

    def _call_event(self, kind: str, slot: int, item: _Item, **fields: str) -> Json:
        place: Json = {"item_id": item.json["id"], "output_index": item.index, **fields}
        return self._event(f"{self.form.call_events}{kind}", slot, **place)

    # The end

    def _ended(self, event: RunEnded) -> Iterator[Json]:
        result = event.result
        if result and result.status == "completed" and result.output is not None:
            yield from self._structured_output(result.output)
        for number, item in enumerate(item for call, item in self._calls.items() if not call.settled):
            item.json["status"] = "incomplete"
            yield self._item_event("done", sequence.REST_OF_CALL + number, item.index, dict(item.json))
        self._waiting.clear()
        self._below.clear()
        response = self.to_json()
        status = response["status"]
        kind = "incomplete" if status == "cancelled" else status
        yield self._event(f"response.{kind}", sequence.LAST_SLOT, response=response)

    def _structured_output(self, output: Any) -> Iterator[Json]:
        """The output as a message, unless it is the text that the model has written."""
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        if text == self.view.last_text or _loaded(self.view.last_text) == output:
            return
        yield from self._open_message("output")
        yield self._text_event("delta", sequence.DELTA, 0, delta=text)
        yield from self._close(text, sequence.CLOSE_TEXT, "final_answer")

    def _status(self) -> tuple[str, Json | None, Json | None]:
        """`status`, `incomplete_details` and `error`."""
        if self.end is None:
            return "in_progress" if self.view.started else "queued", None, None
        status, error = self.end.status, self.end.error
        if status == "completed":
            return "completed", None, None
        if status in _LIMITS:
            return "incomplete", self.form.incomplete_details("max_output_tokens", status), None
        if status == "refused":
            return "incomplete", self.form.incomplete_details("content_filter", status), None
        if status == "cancelled":
            return "cancelled", None, None
        if self.end.result is not None and error is None:  # it was stopped, or has a status of a later version
            return "incomplete", self.form.incomplete_details(None, status), None
        message = f"{error.kind}: {error.message}" if error else f"The run has {status}."
        return "failed", None, {"code": "server_error", "message": message}

    # Events

    def _event(self, kind: str, slot: int, seen: int = 0, **fields: Any) -> Json:
        return {"type": kind, "sequence_number": self._at.number(slot, seen), **fields}

    def _item_event(self, kind: str, slot: int, index: int, item: Json) -> Json:
        return self._event(f"response.output_item.{kind}", slot, output_index=index, item=dict(item))

    def _new_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1


def usage_json(usage: Usage) -> Json:
    """Tokens, as the Responses API names them."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _output_text(text: str, citations: Sequence[Citation]) -> Json:
    annotations = url_citations(citations, text)
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _text_of(arguments: Any) -> str:
    return json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
