"""`openai-chat:NAME`: Chat Completions, of OpenAI or any compatible server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import JsonValue

from mulligan.activities.answers.calls_in_text import as_text as written_call
from mulligan.activities.models._chat_assembler import ChatPieces
from mulligan.activities.models._legal_calls import legal_arguments, legal_id, legal_name
from mulligan.activities.models._openai_client import (
    OpenAIClient,
    as_text,
    count,
    json_schema_of,
    of_status,
    settings_of,
    written,
)
from mulligan.activities.models.protocol import FinishReason, Reply, Request, Unavailable
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, Usage, UserMessage

OURS = "openai-chat"
"""The key of what is ours in a message's `provider_data`."""
REASONING = "reasoning_content"
"""DeepSeek's and Moonshot's field: a server that gives it refuses a conversation from which it is missing
(MoonshotAI/kimi-cli#2141, earendil-works/pi#3636), so it goes back where it came from, and nowhere else."""
_ABOUT_TOOLS = re.compile(r"\btool|\bfunction", re.IGNORECASE)
"""What servers say: "… does not support tools" (ollama), "tool choice requires --enable-auto-tool-choice" (vLLM)."""
CUT_OFF = ("length", "max_tokens", "model_length")


class OpenAIChat:
    """Chat Completions. The client is made of OPENAI_API_KEY and OPENAI_BASE_URL at the first request."""

    name = "openai"

    def __init__(self, client: OpenAIClient | None = None) -> None:
        self._client = client or OpenAIClient()
        self._without_tools: set[str] = set()

    def encode(self, message: Message) -> list[Any]:
        """A message as the one that Chat Completions knows, as JSON."""
        match message:
            case UserMessage():
                return [written({"role": "user", "content": message.text})]
            case ToolMessage():
                said = {"role": "tool", "tool_call_id": legal_id(message.call_id), "content": message.text}
                return [written(said)]
            case AssistantMessage():
                return [written(_assistant(message))]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def complete(self, request: Request) -> Reply:
        """Ask the model.

        With `calls_in_text`, a server that takes no tools is asked once more without, at once: the conversation's calls
        and results are text then, as the model knows them from its instructions.

        Raises:
            ModelRequestError: it refuses, and would refuse again.
            Unavailable: worth another try.
        """
        if request.calls_in_text and request.model in self._without_tools:
            return await self._ask(request, with_tools=False)
        try:
            return await self._ask(request, with_tools=True)
        except ModelRequestError as refused:
            if not request.calls_in_text or refused.status == 401 or not _ABOUT_TOOLS.search(refused.message):
                raise
        reply = await self._ask(request, with_tools=False)
        self._without_tools.add(request.model)
        return reply

    async def _ask(self, request: Request, *, with_tools: bool) -> Reply:
        body = {"model": request.model, **settings_of(request)}
        items = [*request.items]
        if not with_tools:
            body.pop("tool_choice", None)
            body.pop("parallel_tool_calls", None)
            items = [written(message) for message in _in_text([json.loads(item) for item in items])]
        elif request.definition.tools:
            body["tools"] = [
                {"type": "function", "function": tool.model_dump(mode="json")} for tool in request.definition.tools
            ]
            choice = body.get("tool_choice")
            if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
                # The Responses API's spelling, so that an agent may be run with either.
                body["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        if (output := request.definition.output) is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema_of(output)}
        instructions = request.definition.instructions
        system = [written({"role": "system", "content": instructions})] if instructions else []
        pieces = partial(ChatPieces, request.on_text) if request.on_text else None
        messages = [*system, *items]
        return _reply(await self._client.post("/chat/completions", body, "messages", messages, request.timeout, pieces))


def _in_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a server that knows no tools: calls as the model wrote them, results as the user's.

    Neighbours of one role become one message: many a model's template takes user and assistant in turns only.
    """
    names: dict[str, str] = {}
    made: list[dict[str, Any]] = []
    for message in messages:
        said = {"role": message["role"], "content": message["content"] or ""}
        for call in message.get("tool_calls", ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            names[call["id"]] = name
            said["content"] = "\n".join(filter(None, (said["content"], written_call(name, arguments))))
        if message["role"] == "tool":
            name = names.get(message["tool_call_id"], "the tool")
            said = {"role": "user", "content": f"Result of {name}:\n{message['content']}"}
        if made and made[-1]["role"] == said["role"]:
            made[-1]["content"] += f"\n\n{said['content']}"
        else:
            made.append(said)
    return made


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    # Null beside calls is how OpenAI itself says it; with nothing at all, only a text is taken.
    encoded: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.tool_calls else "")}
    kept = (message.provider_data or {}).get(OURS)
    if isinstance(kept, dict) and isinstance(kept.get(REASONING), str):
        encoded[REASONING] = kept[REASONING]
    if message.tool_calls:
        encoded["tool_calls"] = [
            {
                "id": legal_id(call.id),
                "type": "function",
                "function": {"name": legal_name(call.name), "arguments": legal_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return encoded


def _reply(answer: dict[str, Any]) -> Reply:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise _no_message(answer)
    text, refusal = _text(message.get("content")), as_text(message.get("refusal"))
    calls = _calls(message)
    usage = answer.get("usage")
    kept = message.get(REASONING)
    data: dict[str, JsonValue] | None = {OURS: {REASONING: kept}} if isinstance(kept, str) and kept else None
    return Reply(
        text=text or refusal,
        calls=calls,
        finish_reason=_finish(choice.get("finish_reason"), bool(calls), bool(refusal)),
        usage=Usage(
            input_tokens=count(usage, "prompt_tokens"),
            output_tokens=count(usage, "completion_tokens"),
            cached_input_tokens=count(usage, "prompt_tokens_details", "cached_tokens"),
            reasoning_tokens=count(usage, "completion_tokens_details", "reasoning_tokens"),
            cache_write_tokens=count(usage, "prompt_tokens_details", "cache_write_tokens"),
        ),
        response_id=as_text(answer.get("id")),
        model=as_text(answer.get("model")),
        provider_data=data,
    )


def _no_message(answer: dict[str, Any]) -> Exception:
    """Some gateways answer 200 with an error in place of the choices, its `code` being the status that they mean."""
    error = answer.get("error")
    if isinstance(error, dict):
        told, code = as_text(error.get("message") or error), error.get("code")
        if isinstance(code, int) and code >= 400:
            return of_status(code, told)
        return Unavailable(f"the endpoint answered with an error: {told}")
    return Unavailable("the endpoint's answer has no choices, or no message in it")


def _text(content: object) -> str:
    """The content: a text, or a list of parts."""
    if not isinstance(content, list):
        return as_text(content)
    return "".join(as_text(part.get("text")) if isinstance(part, dict) else as_text(part) for part in content)


def _calls(message: dict[str, Any]) -> list[ToolCall]:
    """The calls as the model wrote them. A missing id stays empty: the runtime gives calls ids of their own."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        legacy = message.get("function_call")
        calls = [{"function": legacy}] if isinstance(legacy, dict) else []
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            call, function = {}, {}  # still a call, which will be told that there is no such tool
        name, arguments = as_text(function.get("name")), as_text(function.get("arguments"))
        found.append(ToolCall(id=as_text(call.get("id")), name=name, arguments=arguments))
    return found


def _finish(reason: object, calls: bool, refused: bool) -> FinishReason:
    """Calls count, whatever the server calls it: "stop", the legacy "function_call", nothing."""
    if reason in CUT_OFF:
        return "length"
    if reason == "content_filter":
        return "content_filter"
    if refused:
        return "refusal"
    return "tool_calls" if calls else "stop"
