"""The messages of Chat Completions for servers that refuse what others take: the ids of calls, and the order of roles.

A refusal says which of the `RULES` holds for a model; then every request to it has the same form, whoever wrote the ids.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mulligan.activities.models import _refusals
from mulligan.activities.models.own_ids import LEGAL_IDS

RULES = {
    "short_ids": re.compile(
        r"tool.?call.?ids?\b.{0,300}(length (of )?9\b|\b9 (alpha|char|letter))", re.IGNORECASE | re.DOTALL
    ),
    "answer_after_results": re.compile(
        r"unexpected role.{0,20}\buser\b.{0,20}\bafter\b.{0,20}\btool|user.{0,40}cannot follow.{0,40}tool",
        re.IGNORECASE,
    ),
    "roles_alternate": re.compile(
        r"(roles?|messages?).{0,60}\balternat|\balternat\w*.{0,60}\b(roles?|messages?)|successive (user|assistant)",
        re.IGNORECASE,
    ),
    LEGAL_IDS: _refusals.IDS,
    "no_system": re.compile(
        r"system.{0,3}(role|message|prompt|instruction)?s?.{0,3} (is |are )?not (supported|enabled|allowed)"
        r"|(does|do) not support (the )?.?system|developer instructions? (is|are) not enabled",
        re.IGNORECASE,
    ),
}
"""What a model's requests must be like, and the words of refusals that say so.

`short_ids`: "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9." (Mistral), "Tool call IDs should be
alphanumeric strings with length 9!" (its templates). `answer_after_results`: "Unexpected role 'user' after role 'tool'"
(Mistral). `roles_alternate`: "Conversation roles must alternate user/assistant/user/assistant/..." (templates of Gemma,
Llama 2 and Mistral at vLLM, llama.cpp, LM Studio), "… should alternate with assistant message(s)" (Perplexity), "… does not
support successive user or assistant messages" (DeepSeek). `no_system`: "System
role not supported" (Gemma's template), "Developer instruction is not enabled" (Gemma at Google)."""
ID_CHARS = 9
NO_IDS: Mapping[str, str] = {}
READ = "I have read the results."
"""The assistant's message between the results of calls and the user's next one, where a server requires one there."""
CONTINUE = "Continue."
"""The user's message where the first one must be the user's, and it is not."""
_DIGITS = string.digits + string.ascii_letters


def rules_in(refusal: str) -> list[str]:
    """The `RULES` that a refusal's text names."""
    return [rule for rule, words in RULES.items() if words.search(refusal)]


def strict_messages(
    messages: Iterable[dict[str, Any]], rules: Collection[str], ids: Mapping[str, str] = NO_IDS
) -> list[dict[str, Any]]:
    """The messages of a conversation as a server with these rules takes them.

    Args:
        messages: The messages.
        rules: Those of `RULES` that hold.
        ids: The ids of calls as the server has given them, by those that the messages have.
    """
    changed = list(messages)
    if "no_system" in rules:
        changed = _as_users(changed)
    if ids:
        changed = [_with_ids(message, lambda call_id: ids.get(call_id, call_id)) for message in changed]
    if "short_ids" in rules:
        changed = [_with_ids(message, short_id) for message in changed]
    if "roles_alternate" in rules:
        changed = list(_alternating(changed))
    if "answer_after_results" in rules:
        changed = list(_answered(changed))
    return changed


def short_id(call_id: str) -> str:
    """The id as nine letters and digits: always the same ones for an id, others for another."""
    if re.fullmatch(r"[a-zA-Z0-9]{9}", call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()[:8])
    return "".join(_DIGITS[number // len(_DIGITS) ** place % len(_DIGITS)] for place in range(ID_CHARS))


def joined(first: str | list[Any], second: str | list[Any]) -> str | list[Any]:
    """The contents of two messages as one."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    lists = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second))
    return [part for each in lists for part in each]


def _with_ids(message: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {**message, "tool_call_id": change(message["tool_call_id"])}
    if message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": change(call["id"])} for call in message["tool_calls"]]}
    return message


def _as_users(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the instructions as the beginning of the first one, which is then the user's."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    instructions, *rest = messages
    if rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": joined(instructions["content"], rest[0]["content"])}, *rest[1:]]
    return [{"role": "user", "content": instructions["content"]}, *rest]


def _alternating(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages with user and assistant in turns, the user first. Calls and their results are not counted."""
    newest: dict[str, Any] | None = None
    turn = "assistant"
    for message in messages:
        role = message["role"]
        if role in ("system", "tool") or message.get("tool_calls"):
            if newest is not None:
                yield newest
            newest = None
            yield message
        elif role == turn and newest is not None:
            newest = {**newest, "content": joined(newest["content"] or "", message["content"] or "")}
        else:
            if newest is not None:
                yield newest
            elif role == turn:
                yield _between(role)
            newest, turn = message, role
    if newest is not None:
        yield newest


def _between(role: str) -> dict[str, Any]:
    return {"role": "assistant", "content": READ} if role == "user" else {"role": "user", "content": CONTINUE}


def _answered(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    before = ""
    for message in messages:
        if before == "tool" and message["role"] == "user":
            yield _between("user")
        yield message
        before = message["role"]
