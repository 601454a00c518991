"""How servers write their answers, and cut them into the events of a stream, where it is not OpenAI's way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.support.openai_stream import Event, chat_events
from tests.support.zoo.member import Json


def message_of(answer: Json) -> Json:
    """The message of an answer, which may be changed."""
    message: Json = answer["choices"][0]["message"]
    return message


def with_ids(new: Callable[[str, int, str], Any]) -> Callable[[Json], Json]:
    """Answers with other ids of calls, by the tool's name, the call's number and the id that it has."""

    def change(answer: Json) -> Json:
        answer = copy.deepcopy(answer)
        for number, call in enumerate(message_of(answer).get("tool_calls") or ()):
            call["id"] = new(call["function"]["name"], number, call["id"])
        return answer

    return change


def with_field(name: str, value: Any) -> Callable[[Json], Json]:
    """Answers with one more field in their message, if they have calls."""

    def change(answer: Json) -> Json:
        answer = copy.deepcopy(answer)
        if message_of(answer).get("tool_calls"):
            message_of(answer)[name] = copy.deepcopy(value)
        return answer

    return change


def without_usage(answer: Json) -> Json:
    """An answer that says nothing of tokens."""
    return {name: value for name, value in answer.items() if name != "usage"}


def usage_of_zeros(answer: Json) -> Json:
    """An answer whose tokens are all 0."""
    return {**answer, "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}


def whole_calls(index: Callable[[int], int | None]) -> Callable[[Json], list[Event]]:
    """Each call comes in one piece. `index`: the index of a call, by its number; None: it has none."""

    def stream(answer: Json) -> list[Event]:
        calls = message_of(answer).get("tool_calls") or []
        begin, *rest = chat_events(_without_calls(answer), with_usage="usage" in answer)
        return [begin, *(_piece(answer, {"tool_calls": [_at(call, index(n))]}) for n, call in enumerate(calls)), *rest]

    return stream


def all_at_once(answer: Json) -> list[Event]:
    """The whole message is one chunk."""
    end = chat_events(_without_calls(answer, text=None), with_usage="usage" in answer)[1:]
    message = message_of(answer)
    calls = [_at(call, n) for n, call in enumerate(message.get("tool_calls") or ())]
    return [_piece(answer, {**message, **({"tool_calls": calls} if calls else {})}), *end]


def openai(answer: Json) -> list[Event]:
    """OpenAI's way."""
    return chat_events(answer, with_usage="usage" in answer)


def extra_pieces(
    name: str, cut: Callable[[Any], list[Any]], rest_of: Callable[[Json], list[Event]] = openai
) -> Callable[[Json], list[Event]]:
    """A field of the message comes in pieces before the rest."""

    def stream(answer: Json) -> list[Event]:
        begin, *rest = rest_of(answer)
        value = message_of(answer).get(name)
        return [begin, *(_piece(answer, {name: each}) for each in (cut(value) if value else ())), *rest]

    return stream


def changed(
    stream: Callable[[Json], list[Event]], change: Callable[[Json, int], Json]
) -> Callable[[Json], list[Event]]:
    """The events of a stream, each changed by its number."""

    def write(answer: Json) -> list[Event]:
        events = copy.deepcopy(stream(answer))
        return [change(each, number) if isinstance(each, dict) else each for number, each in enumerate(events)]

    return write


def _without_calls(answer: Json, **more: Any) -> Json:
    answer = copy.deepcopy(answer)
    message_of(answer).pop("tool_calls", None)
    message_of(answer).update({"content": more["text"]} if "text" in more else {})
    return answer


def _at(call: Json, index: int | None) -> Json:
    return call if index is None else {"index": index, **call}


def _piece(answer: Json, delta: Json) -> Json:
    about = {name: answer[name] for name in ("id", "created", "model")}
    return {
        **about,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }
