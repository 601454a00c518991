"""`openai:NAME`: the Responses API, with nothing stored at the provider: the conversation is ours alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

from mulligan.activities.models._legal_calls import legal_arguments, legal_id, legal_name
from mulligan.activities.models._openai_client import OpenAIClient, as_text, count, json_schema_of, settings_of, written
from mulligan.activities.models._responses_assembler import ResponsePieces
from mulligan.activities.models.protocol import FinishReason, Reply, Request, Unavailable
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, Usage, UserMessage

OURS = "openai"
"""The key of what is ours in a message's `provider_data`: a list of the answer's items, in their order."""
ENCRYPTED = "reasoning.encrypted_content"
"""What must be asked for, or reasoning could not go back: the server keeps none of it."""
_ABOUT_REASONING = re.compile(r"encrypted.content|\binclude\b", re.IGNORECASE)
"""What servers say to it: "Encrypted content is not supported with this model." (pydantic/pydantic-ai#2865), "The encrypted
content for item rs_… could not be verified." (openai/codex#17541), "Unknown parameter: 'include'."."""
REFUSING_CODES = frozenset(
    {
        "invalid_prompt",
        "context_length_exceeded",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
    }
)
"""Codes of a failed response that would be the same the next time (openai.types.responses.ResponseError; those about
images cannot be, as none is sent). Any other is worth another try."""


class OpenAIResponses:
    """The Responses API. The client is made of OPENAI_API_KEY and OPENAI_BASE_URL at the first request."""

    name = "openai"

    def __init__(self, client: OpenAIClient | None = None) -> None:
        self._client = client or OpenAIClient()
        self._without_reasoning: set[str] = set()

    def encode(self, message: Message) -> list[Any]:
        """A message as input items, as JSON: one, or several for what the model said."""
        return [written(item) for item in _items(message)]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def complete(self, request: Request) -> Reply:
        """Ask the model.

        Reasoning is always asked for and sent back. A model that has none refuses that, and one that did not do this
        reasoning (a run's model can change) refuses to read it: then it is asked once more without, at once.

        Raises:
            ModelRequestError: it refuses, and would refuse again.
            Unavailable: worth another try.
        """
        learned = False
        if request.model not in self._without_reasoning:
            try:
                return await self._ask(request, reasoning=True)
            except ModelRequestError as refused:
                if refused.status not in (400, 422) or not _ABOUT_REASONING.search(refused.message):
                    raise
            learned = not any(map(_is_reasoning, request.items))
        reply = await self._ask(request, reasoning=False)
        if learned:  # it was the asking that it refused, and it will again
            self._without_reasoning.add(request.model)
        return reply

    async def _ask(self, request: Request, *, reasoning: bool) -> Reply:
        items = [item for item in request.items if reasoning or not _is_reasoning(item)]
        body = _body(request, reasoning=reasoning)
        pieces = partial(ResponsePieces, request.on_text) if request.on_text else None
        return _reply(await self._client.post("/responses", body, "input", items, request.timeout, pieces))


def _items(message: Message) -> list[dict[str, Any]]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": message.text}]
        case ToolMessage():
            return [{"type": "function_call_output", "call_id": legal_id(message.call_id), "output": message.text}]
        case AssistantMessage():
            return _assistant(message)


def _body(request: Request, *, reasoning: bool) -> dict[str, Any]:
    body = {"model": request.model, "store": False, **settings_of(request)}
    include = [name for name in body.pop("include", None) or [] if name != ENCRYPTED]
    if reasoning:
        include.append(ENCRYPTED)
    if include:
        body["include"] = include
    if request.definition.instructions:
        body["instructions"] = request.definition.instructions
    if request.definition.tools:
        # Strict mode is this API's default, and would refuse any schema with an optional parameter.
        body["tools"] = [
            {"type": "function", **tool.model_dump(mode="json"), "strict": False} for tool in request.definition.tools
        ]
        choice = body.get("tool_choice")
        if isinstance(choice, Mapping) and isinstance(named := choice.get("function"), Mapping):
            # Chat Completions' spelling, so that an agent may be run with either.
            body["tool_choice"] = {"type": "function", "name": named.get("name")}
    if (output := request.definition.output) is not None:
        settings = body.get("text")
        others = settings if isinstance(settings, Mapping) else {}
        body["text"] = {**others, "format": {"type": "json_schema", **json_schema_of(output)}}
    return body


def _is_reasoning(item: str) -> bool:
    return item.startswith('{"type":"reasoning"')


def _assistant(message: AssistantMessage) -> list[dict[str, Any]]:
    """Text and calls, with the reasoning where it stood. What `provider_data` does not place follows in that order."""
    kept = (message.provider_data or {}).get(OURS)
    calls = iter(
        {
            "type": "function_call",
            "call_id": legal_id(call.id),
            "name": legal_name(call.name),
            "arguments": legal_arguments(call.arguments),
        }
        for call in message.tool_calls
    )
    items: list[dict[str, Any]] = []
    unsaid = message.text
    for item in _objects(kept):
        match item:
            case {"type": "reasoning"}:
                items += _reasoning(item)
            case {"type": "message"}:
                items += _said(as_text(item.get("text", unsaid)), item.get("phase"))
                unsaid = ""
            case {"type": "function_call"}:
                items += islice(calls, 1)
    items += [*_said(unsaid), *calls]
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # it led to nothing, as where an answer was cut off: the server refuses it then
    return items or [{"role": "assistant", "content": ""}]


def _said(text: str, phase: object = None) -> list[dict[str, Any]]:
    item = {"role": "assistant", "content": text}
    return [] if not text else [{**item, "phase": phase} if isinstance(phase, str) else item]


def _reply(answer: dict[str, Any]) -> Reply:
    output, status = answer.get("output"), answer.get("status")
    if status == "failed" or answer.get("error"):
        raise _failed(answer.get("error"))
    if not isinstance(output, list) or status not in ("completed", "incomplete", None):
        raise Unavailable(f"the endpoint's answer has status {status!r}, and no output that could be read")
    texts: list[str] = []
    calls: list[ToolCall] = []
    kept: list[Any] = []
    refused = False
    for item in _objects(output):
        match item:
            case {"type": "reasoning"}:
                kept += _reasoning(item)
            case {"type": "message", "content": content}:
                text, refusal = _parts(content)
                refused = refused or refusal
                if text:
                    texts.append(text)
                    phase = {"phase": item["phase"]} if item.get("phase") else {}
                    kept.append({"type": "message", **phase, "text": text})
            case {"type": "function_call"}:
                call_id, name, arguments = (as_text(item.get(key)) for key in ("call_id", "name", "arguments"))
                calls.append(ToolCall(id=call_id, name=name, arguments=arguments))
                kept.append({"type": "function_call"})
    layout = _layout(kept, one_text=len(texts) == 1)
    usage = answer.get("usage")
    return Reply(
        text="\n\n".join(texts),
        calls=calls,
        finish_reason=_finish(answer, bool(calls), refused),
        usage=Usage(
            input_tokens=count(usage, "input_tokens"),
            output_tokens=count(usage, "output_tokens"),
            cached_input_tokens=count(usage, "input_tokens_details", "cached_tokens"),
            reasoning_tokens=count(usage, "output_tokens_details", "reasoning_tokens"),
            cache_write_tokens=count(usage, "input_tokens_details", "cache_write_tokens"),
        ),
        response_id=as_text(answer.get("id")),
        model=as_text(answer.get("model")),
        provider_data={OURS: layout} if layout else None,
    )


def _failed(error: object) -> Exception:
    code, told = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    message = f"The model's endpoint could not make a response ({code or 'no code'}): {as_text(told)}"
    return ModelRequestError(message) if code in REFUSING_CODES else Unavailable(message)


def _reasoning(item: dict[str, Any]) -> list[dict[str, Any]]:
    """A reasoning item by its input fields: sent back with `status` it is refused (BerriAI/litellm#13420).

    None without encrypted content: the server would look for it among what it stores, which is nothing, and answer 404.
    """
    secret = item.get("encrypted_content")
    if not isinstance(secret, str) or not secret:
        return []
    kept = {"type": "reasoning", "id": as_text(item.get("id")), "summary": _texts(item.get("summary"))}
    content = _texts(item.get("content"))
    return [{**kept, **({"content": content} if content else {}), "encrypted_content": secret}]


def _texts(parts: object) -> list[dict[str, Any]]:
    return [{"type": part.get("type"), "text": as_text(part.get("text"))} for part in _objects(parts)]


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _parts(content: object) -> tuple[str, bool]:
    """The text of a message, and whether it is a refusal."""
    if not isinstance(content, list):
        return as_text(content), False
    parts = _objects(content)
    text = "".join(as_text(part.get("refusal" if part.get("type") == "refusal" else "text")) for part in parts)
    return text, any(part.get("type") == "refusal" for part in parts)


def _layout(kept: list[Any], *, one_text: bool) -> list[Any]:
    """The items as history needs them: a lone text stands in the message already, and so does what comes last."""
    if one_text:
        for item in kept:
            if item["type"] == "message":
                del item["text"]
    while kept and kept[-1] == {"type": "function_call"}:
        kept = kept[:-1]
    return kept[:-1] if kept and kept[-1] == {"type": "message"} else kept


def _finish(answer: dict[str, Any], calls: bool, refused: bool) -> FinishReason:
    if answer.get("status") == "incomplete":
        details = answer.get("incomplete_details")
        filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
        return "content_filter" if filtered else "length"
    if refused:
        return "refusal"
    return "tool_calls" if calls else "stop"
