"""What servers refuse in a request, in their own words. Each rule is used by the files of the servers that have it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.zoo.member import Json, Rule

PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def text_of(message: Json) -> str:
    """The text of a message, whatever its form."""
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def turns(body: Json) -> list[Json]:
    """The messages without the instructions, and without calls and results: what templates count."""
    return [each for each in body["messages"] if each["role"] in ("user", "assistant") and not each.get("tool_calls")]


def roles_alternate(told: str) -> Rule:
    """User and assistant in turns, the user first."""

    def rule(body: Json) -> str | None:
        roles = [message["role"] for message in turns(body)]
        right = ["user", "assistant"] * len(roles)
        return None if roles == right[: len(roles)] else told

    return rule


def after(role: str, refused: str) -> Rule:
    """No message of the role `refused` directly after one of `role`."""

    def rule(body: Json) -> str | None:
        roles = [message["role"] for message in body["messages"]]
        pairs = itertools.pairwise(roles)
        return f"Unexpected role '{refused}' after role '{role}'" if (role, refused) in pairs else None

    return rule


def nothing_empty(told: Callable[[int, str], str], roles: Iterable[str] = ("user", "assistant", "tool")) -> Rule:
    """No message without a text that has more than white space, unless it has calls."""
    checked = tuple(roles)

    def rule(body: Json) -> str | None:
        for at, message in enumerate(body["messages"]):
            has_picture = isinstance(message.get("content"), list)
            is_empty = not text_of(message).strip() and not message.get("tool_calls") and not has_picture
            if message["role"] in checked and is_empty:
                return told(at, message["role"])
        return None

    return rule


def no_blank_beside_calls(told: str) -> Rule:
    """No text of white space beside calls."""

    def rule(body: Json) -> str | None:
        is_blank = (text_of(each) != "" and not text_of(each).strip() for each in body["messages"])
        return told if any(is_blank) else None

    return rule


def no_system(told: str) -> Rule:
    """No message of the role `system`."""
    return lambda body: told if body["messages"][0]["role"] == "system" else None


def ids(body: Json) -> list[str]:
    """The ids of calls and of results."""
    calls = (call["id"] for message in body["messages"] for call in message.get("tool_calls") or ())
    return [*calls, *(each["tool_call_id"] for each in body["messages"] if each["role"] == "tool")]


def ids_match(pattern: str, told: str) -> Rule:
    """Ids of calls have a form; `told` gets the first that has not."""

    def rule(body: Json) -> str | None:
        wrong = next((each for each in ids(body) if not re.fullmatch(pattern, each)), None)
        return None if wrong is None else told.format(id=wrong)

    return rule


def results_follow_calls(told: str) -> Rule:
    """The results of calls follow these directly, each once, and nothing else between."""

    def rule(body: Json) -> str | None:
        open_ids: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_ids:
                    return told.format(id=message["tool_call_id"])
                open_ids.remove(message["tool_call_id"])
                continue
            if open_ids:
                return told.format(id=open_ids[0])
            open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        return told.format(id=open_ids[0]) if open_ids else None

    return rule


def plain_properties(told: str) -> Rule:
    """The names of a tool's arguments."""

    def rule(body: Json) -> str | None:
        for number, tool in enumerate(body.get("tools") or ()):
            names = tool["function"]["parameters"].get("properties", {})
            if not all(map(PROPERTY.fullmatch, names)):
                return told.format(number=number)
        return None

    return rule


def no_pictures(told: str) -> Rule:
    """No images."""
    return lambda body: told if '"image_url"' in json.dumps(body["messages"]) else None


def comes_back(field: str, is_whole: Callable[[Any], bool], told: str) -> Rule:
    """Each answer with calls that this server made has its field as it was."""

    def rule(body: Json) -> str | None:
        own = (each for each in body["messages"] if any("call_" in c["id"] for c in each.get("tool_calls") or ()))
        return None if all(field in each and is_whole(each[field]) for each in own) else told

    return rule
