"""Chat Completions streams as careless servers write them: a plan of an answer, and a random way to put it on the wire.

A plan says what the model wrote and whether an error was written or the end is missing. What a reader may make of it follows
from the plan alone: the text and the calls, each once, or a failed attempt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
FAILED_REASONS = (
    "error",
    "abort",
    "failed",
    "insufficient_system_resource",
    "network_error",
    "ERROR",
    "cancelled",
    "timeout",
)
ENDED_REASONS = ("stop", "tool_calls", "STOP", "eos", "finished", "function_call")
NAMES = ("pay", "look_up", "now")
ARGUMENTS = st.dictionaries(
    st.sampled_from(["amount", "city", "ids"]),
    st.integers(-9, 99) | st.text("ab{}\"\\: ,é", max_size=6) | st.lists(st.integers(0, 9), max_size=3),
    max_size=3,
)  # fmt: skip
ERROR_OBJECTS: tuple[Any, ...] = (
    "model 'q' not found",
    {"message": "gone"},
    {"message": "gone", "code": 502},
    {"code": "503", "message": "gone", "type": "None"},
    {"message": "no", "type": "invalid_request_error", "code": None},
)


@dataclass(frozen=True)
class WrittenCall:
    """A call that the model wrote."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class WrittenStream:
    """What the model wrote, and the bytes of the stream.

    `has_failed`: an error was written, or the end is missing.
    """

    text: str
    calls: tuple[WrittenCall, ...]
    has_failed: bool
    data: tuple[bytes, ...]


def written_streams() -> st.SearchStrategy[WrittenStream]:
    """Random streams."""
    return st.composite(lambda draw: _StreamWriter(draw).write())()


class _StreamWriter:
    """Writes one stream. Each habit of the server is drawn once: a server has it in the whole stream."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.ids = self.one("steady", "change", "missing", "empty", "first only", "one for all", "null")
        self.indexes = self.one("right", "missing", "all 0", "from 1", "null")
        self.arguments = self.one(
            "pieces", "whole", "growing", "repeated whole", "{} first", "object", "in one piece each"
        )
        self.names = self.one("once", "each time", "null later")
        if self.ids == "change" and self.arguments in ("{} first", "repeated whole") and self.names == "each time":
            self.names = "once"  # otherwise these are two calls to any reader
        self.choice = self.one("0", "counts", "missing", "1", "beside another")
        self.again = self.one("no", "message", "delta", "delta with finish")
        self.again_ids = self.one("same", "other", "none")
        self.noise = self.one("none", "comments", "empty data", "null data", "pings")
        self.chunks = 0

    def one(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def write(self) -> WrittenStream:
        text = self.draw(st.text("abc .\n{é", max_size=30))
        calls = self.draw(st.lists(st.builds(WrittenCall, st.sampled_from(NAMES), ARGUMENTS), max_size=3))
        calls = self._tellable(calls)
        events = [chunk for piece in self.cut(text) for chunk in self.chunk({"content": piece})]
        for chunk in self.call_pieces(calls):
            events += self.chunk(chunk)
        if not events and self.choice == "counts":
            events += self.chunk({"role": "assistant"})
        end, has_end = self.end(text, calls, bool(events))
        data = [self.framed(event) for event in events]
        error, where = self.one(None, None, "event", "field", "named", "choice", "object", "unframed"), 0
        if error is not None:
            where = self.draw(st.integers(0, len(data)))
            data[where:] = [self.error(error), *([] if error == "unframed" else data[where:])]
            end = [] if error == "unframed" else end
        failed_reason = self.one(*(False,) * 5, True)
        if failed_reason:
            end = [self.framed(self.closing(self.one(*FAILED_REASONS))), *self.one([], [b"data: [DONE]\n\n"])]
        has_failed = error is not None or failed_reason or not has_end
        return WrittenStream(text, tuple(calls), has_failed, tuple(self.with_noise([*data, *end])))

    def _tellable(self, calls: list[WrittenCall]) -> list[WrittenCall]:
        """Calls that can be told from each other. Equal ones of a careless server cannot: they may be one that is repeated."""
        seen: list[WrittenCall] = []
        for call in calls:
            if call in seen or (self.ids == "one for all" and any(each.name == call.name for each in seen)):
                continue
            # Without own ids or indexes, a call without arguments and one of the same name are one call to any reader.
            if any(each.name == call.name and not (each.arguments and call.arguments) for each in seen):
                continue
            seen.append(call)
        return seen

    def cut(self, text: str) -> list[str]:
        if not text:
            return []
        places = sorted(set(self.draw(st.lists(st.integers(1, max(len(text) - 1, 1)), max_size=4))))
        return [piece for a, b in zip([0, *places], [*places, len(text)], strict=True) if (piece := text[a:b])]

    def chunk(self, delta: dict[str, Any], finish: str | None = None, key: str = "delta") -> Iterator[dict[str, Any]]:
        index = {"0": 0, "counts": self.chunks, "1": 1}.get(self.choice, 0)
        self.chunks += 1
        place = {} if self.choice == "missing" else {"index": index}
        reason = {} if finish is None and self.one(True, False) else {"finish_reason": finish}
        yield {
            "id": "c",
            "choices": [{**place, key: delta, **reason}],
            **self.one({}, {"usage": None}, {"error": None}),
        }
        if self.choice == "beside another" and finish is None:
            yield {"choices": [{"index": 1, "delta": {"content": "Not this."}}]}

    def closing(self, reason: str) -> dict[str, Any]:
        [event, *_] = self.chunk(self.one({}, {"content": ""}, {"content": None}), reason)
        return event

    def call_pieces(self, calls: list[WrittenCall]) -> Iterator[dict[str, Any]]:
        at_once = self.arguments in ("whole", "object") and self.one(True, False)
        deltas = [self.deltas(number, call) for number, call in enumerate(calls)]
        if at_once and deltas:
            yield {"tool_calls": [each[0] for each in deltas]}
        elif self.ids == "steady" and self.indexes == "right" and self.one(True, False):
            while any(deltas):  # side by side
                yield {"tool_calls": [self.one(*filter(None, deltas)).pop(0)]}
        else:
            for each in deltas:
                yield from ({"tool_calls": [delta]} for delta in each)

    def deltas(self, number: int, call: WrittenCall) -> list[dict[str, Any]]:
        text = json.dumps(call.arguments)
        pieces: list[Any] = self.cut(text)
        if self.arguments == "growing":
            pieces = [text[: sum(map(len, pieces[: n + 1]))] for n in range(len(pieces))]
        elif self.arguments == "repeated whole":
            pieces = [*pieces, text]
        elif self.arguments == "{} first":
            pieces = ["{}", *pieces]
        elif self.arguments in ("whole", "object"):
            pieces = [call.arguments if self.arguments == "object" else text]
        elif self.arguments == "in one piece each":
            pieces = ["", text]
        return [self.delta(number, n, call.name, piece) for n, piece in enumerate(pieces)]

    def delta(self, number: int, n: int, name: str, piece: Any) -> dict[str, Any]:
        named = (
            {"name": name}
            if n == 0 or self.names == "each time"
            else {"name": None}
            if self.names == "null later"
            else {}
        )
        ids = {
            "steady": f"call_{number}",
            "change": f"call_{number}_{n}",
            "empty": "",
            "one for all": "call",
            "null": None,
        }
        if self.ids == "first only":
            ids |= {"first only": f"call_{number}" if n == 0 else ""}
        place = {"right": number, "all 0": 0, "from 1": number + 1, "null": None}
        fields: dict[str, Any] = {"id": ids[self.ids]} if self.ids in ids else {}
        fields |= {"index": place[self.indexes]} if self.indexes in place else {}
        return {**fields, **self.one({}, {"type": "function"}), "function": {**named, "arguments": piece}}

    def end(self, text: str, calls: list[WrittenCall], has_events: bool) -> tuple[list[bytes], bool]:
        """The last events, and whether they end the answer."""
        end: list[bytes] = []
        reason = self.one(*ENDED_REASONS)
        kind = (
            self.one("both", "both", "reason", "done", "nothing")
            if self.choice not in ("counts", "beside another")
            else "both"
        )
        again = self.again if has_events and self.choice not in ("counts", "1") else "no"
        if again == "delta" and 0 < len(text) < 8 and not calls:
            again = "no"  # then it may be the next piece
        if again != "no":
            in_it = "stop" if again == "delta with finish" or self.one(True, False) else None
            message = {"role": "assistant", "content": text or None, "tool_calls": self.whole_calls(calls)}
            key = "message" if again == "message" else "delta"
            if key == "delta" and 0 < len(text) < 8:
                message["content"] = None
            end += [self.framed(event) for event in self.chunk(message, in_it, key)]
            kind = "reason" if in_it and kind in ("nothing", "done") else kind
        if kind == "done" and not (text or calls):
            kind = "nothing"  # an end without any answer
        if kind in ("both", "reason"):
            end.append(self.framed(self.closing(reason)))
        if self.one(True, False):
            end.append(self.framed({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}))
        if kind in ("both", "done"):
            end.append(b"data: [DONE]\n\n")
        return end, kind != "nothing"

    def whole_calls(self, calls: list[WrittenCall]) -> list[dict[str, Any]] | None:
        """All calls once more."""
        place = self.one(True, False)
        found = []
        for number, call in enumerate(calls):
            ids = {"same": f"call_{number}", "other": f"again_{number}"}
            fields: dict[str, Any] = {"id": ids[self.again_ids]} if self.again_ids in ids else {}
            fields |= {"index": number} if place and self.indexes == "right" else {}
            found.append(
                {**fields, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            )
        return found or self.one(None, [])

    def error(self, kind: str) -> bytes:
        told = self.one(*ERROR_OBJECTS)
        if kind == "choice":
            return self.framed({"choices": [{"index": 0, "delta": {}, "error": told}]})
        if kind == "object":
            return self.framed({"object": "error", "message": "gone", "code": self.one(40303, 500, "50002")})
        words = json.dumps(told).encode()
        if kind == "field":
            return b"error: " + words + b"\n\n"
        if kind == "named":
            return b"event: error\ndata: " + words + b"\n\n"
        if kind == "unframed":
            return json.dumps({"error": told}, indent=self.one(None, 2)).encode() + b"\n"
        return self.framed({"error": told})

    def framed(self, event: dict[str, Any]) -> bytes:
        return f"data:{self.one(' ', '')}{json.dumps(event)}\n\n".encode()

    def with_noise(self, events: list[bytes]) -> Iterator[bytes]:
        noise = {
            "comments": b": ping\n\n",
            "empty data": b"data:\n\n",
            "null data": b"data: null\n\n",
            "pings": b"event: ping\ndata: {}\n\n",
        }
        for event in events:
            if self.noise in noise and self.one(True, False):
                yield noise[self.noise]
            yield event
