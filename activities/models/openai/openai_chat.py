"""`openai-chat:NAME`: Chat Completions, at OpenAI or at any compatible server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from mulligan.activities.models import _refusals
from mulligan.activities.models._adapted import Adapted
from mulligan.activities.models._hosted_work import hosted_calls, text_with_description
from mulligan.activities.models._json_fields import as_text, finish_reason, results_first, to_json, unknown_reason
from mulligan.activities.models._legal_calls import NO_RESULT, legal_arguments, legal_id, legal_name, said
from mulligan.activities.models._made_files import MadeFiles
from mulligan.activities.models._plain_properties import PLAIN_PROPERTIES, PlainProperties
from mulligan.activities.models._read_response import wrong_types_are_unavailable
from mulligan.activities.models._refused_content import RefusedContent
from mulligan.activities.models._sdk_client import HttpRequest, SdkProvider
from mulligan.activities.models._strict_messages import RULES, rules_in, strict_messages
from mulligan.activities.models._strict_schema import strict_tool
from mulligan.activities.models._told_errors import raise_told
from mulligan.activities.models.openai._chat_assembler import ChatAssembler, content_text
from mulligan.activities.models.openai._chat_fields import (
    citations_of,
    extra_fields,
    hosted_work,
    is_custom,
    kept_fields,
    with_kept_fields,
    without_bytes,
    without_fields,
)
from mulligan.activities.models.openai._openai_batches import OpenAIBatches
from mulligan.activities.models.openai._openai_client import OpenAIClient, json_schema_format, settings_of
from mulligan.activities.models.openai._openai_usage import openai_usage
from mulligan.activities.models.own_ids import LEGAL_IDS, own_ids
from mulligan.activities.models.protocol import AnswersInBatches, Reply, Request, Unavailable
from mulligan.content import Media, Part, Text, media_of
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage

if TYPE_CHECKING:
    from mulligan.activities.models.available_providers import AvailableProviders

DATA_KEY = "openai-chat"
"""The key of this provider in a message's `provider_data`; that of an endpoint has its name as well. It has the fields that
`_chat_fields` keeps. A server that sends `reasoning_content` refuses a conversation from which it is missing
(MoonshotAI/kimi-cli#2141, earendil-works/pi#3636), so all of them are sent back to this provider, and to no other."""
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""The names of audio formats in a request, by media type."""
_CUT_OFF = (
    "length",
    "max_tokens",
    "model_length",
    "model_context_window_exceeded",
    "context_length_exceeded",
    "incomplete",
    "max_output_tokens",
    "max_new_tokens",
    "max_length",
    "token_limit",
    "truncated",
)
_FILTERED = ("content_filter", "sensitive", "safety", "guardrail_intervened", "content_filtered")
_ENDED = (
    "",
    "stop",
    "tool_calls",
    "tool_call",
    "function_call",
    "eos",
    "eos_token",
    "stop_sequence",
    "end_turn",
    "tool_use",
)
"""The finish reasons of an answer that was cut off by the token limit, withheld, or is whole; in small letters."""


class OpenAIChat(SdkProvider[OpenAIClient]):
    """Chat Completions, at the client's endpoint. The client reads its key at the first request."""

    name = "openai"
    background = None
    batch_path = "/v1/chat/completions"

    def __init__(self, client: OpenAIClient | None = None) -> None:
        self._client = client or OpenAIClient()
        self.data_key = self._client.data_key(DATA_KEY)
        self._adapted = Adapted()
        self._refused_content = RefusedContent(self._adapted)
        self._labels = self._client.accepted_labels(self._adapted)

    @property
    def batch(self) -> AnswersInBatches:
        """This provider itself: it answers in batches."""
        return self

    def encode(self, message: Message) -> list[Any]:
        """Return the message in Chat Completions' form, as JSON."""
        match message:
            case UserMessage():
                content = _parts(message.content) if message.content else said(message.text)
                return [to_json({"role": "user", "content": content})]
            case ToolMessage():
                return [to_json(item) for item in _tool_items(message)]
            case AssistantMessage():
                return [to_json(item) for item in _assistant_items(message, self.data_key)]

    def takes(self, part: Media, role: Literal["user", "tool"]) -> bool:  # noqa: ARG002 - both alike
        """Whether a part is an image of a common format, WAV or MP3, or a PDF; the latter three by their bytes only."""
        if part.type == "image":
            return part.media_type in IMAGES
        return part.url is None and part.media_type in (AUDIO_FORMATS if part.type == "audio" else ("application/pdf",))

    async def complete(self, request: Request) -> Reply:
        """Request an answer.

        With `call_as_text`, a server that refuses tools is asked again at once without them: the calls and results of the
        conversation are then sent as text, in the form that the instructions describe. Where it refuses images, files or
        audio, they are described in text; fields of its own answers that it refuses in a request are left out.

        Raises:
            ModelRequestError: the endpoint refuses the request, and would refuse it again.
            Unavailable: the request may be retried.
        """
        self._adapted.recall(request)
        reply = await self._refused_content.send(request, self._with_or_without_tools)
        return replace(reply, adapted=sorted(self._adapted.of(request.model)))

    async def _with_or_without_tools(self, request: Request) -> Reply:
        if self._writes_calls(request):
            return await self._request(request, with_tools=False)
        try:
            return await self._request(request, with_tools=True)
        except ModelRequestError as refused:
            if not _refuses_tools(request, refused):
                raise
        reply = await self._request(request, with_tools=False)
        self._adapted.learn(request.model, ["no_tools"])
        return reply

    def _writes_calls(self, request: Request) -> bool:
        """Whether calls go to the model as text, as it has refused tools."""
        return request.call_as_text is not None and "no_tools" in self._adapted.of(request.model)

    async def drops_tools(self) -> bool:
        """Whether the endpoint leaves out the tools of requests without a word: `OpenAIClient.drops_tools`."""
        return await self._client.drops_tools()

    def batch_body(self, request: Request, *, plain: bool) -> bytes:
        """The body of the request as part of a batch. `plain`: without tools, where calls may be in the text."""
        self._adapted.recall(request)
        request = self._refused_content.without(request)
        without_tools = request.call_as_text is not None and (plain or self._writes_calls(request))
        return self._http_request(request, with_tools=not without_tools).content({})

    def may_take_plain(self, request: Request, error: ModelRequestError | Unavailable) -> bool:
        """Whether a batch's request that was refused may be sent again as the refusal says, or without tools."""
        if self._refused_content.learn(request.model, request.items, error) or self._has_learned(request, error):
            return True
        return isinstance(error, ModelRequestError) and _refuses_tools(request, error)

    @property
    def batches(self) -> OpenAIBatches:
        """The Files and Batch API of the endpoint."""
        return OpenAIBatches(self._client)

    def reply_of(self, response: dict[str, Any]) -> Reply:
        """The answer in a response.

        Raises:
            ModelRequestError, Unavailable: as for `complete`.
        """
        return _reply(response, self.data_key, self._client.key_variable)

    async def _request(self, request: Request, *, with_tools: bool) -> Reply:
        while True:
            try:
                sent = self._http_request(request, with_tools=with_tools)
                reply = await self._ask(sent, request.written, self.reply_of)
                return self._properties(request).reply(reply)
            except (ModelRequestError, Unavailable) as refused:
                if not self._has_learned(request, refused):
                    raise

    def _properties(self, request: Request) -> PlainProperties:
        return PlainProperties.of(request) if PLAIN_PROPERTIES in self._adapted.of(request.model) else PlainProperties()

    def _has_learned(self, request: Request, refused: ModelRequestError | Unavailable) -> bool:
        """Whether a refusal says what the model's requests must be like, and that was not known.

        Servers with a model's chat template answer 500 where the template refuses a conversation.
        """
        status, message = refused.status or 400, str(refused)
        if status in (401, 402, 403, 404, 408, 409, 429) or request.written.size:
            return False
        words = [*rules_in(message), *([PLAIN_PROPERTIES] if _refusals.PROPERTIES.search(message) else [])]
        if isinstance(refused, ModelRequestError) and status in (400, 422):
            named = (name for name in extra_fields(request.items) if re.search(rf"\b{re.escape(name)}\b", message))
            words += [f"no_{name}" for name in named]
            if self._labels.learn(request.model, refused):
                return True
        return self._adapted.learn(request.model, words)

    def _http_request(self, request: Request, *, with_tools: bool) -> HttpRequest:
        body = {"model": request.model, **settings_of(request, DATA_KEY, self._labels.of(request.model))}
        request = self._properties(request).request(request)
        if not with_tools:
            body.pop("tool_choice", None)
            body.pop("parallel_tool_calls", None)
        elif request.definition.tools or request.definition.tools_of(DATA_KEY):
            functions = ({"type": "function", "function": strict_tool(each)} for each in request.definition.tools)
            body["tools"] = [*functions, *request.definition.tools_of(DATA_KEY)]
            choice = body.get("tool_choice")
            if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
                # The Responses API's form is accepted too, so that an agent's settings work with either provider.
                body["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        if (output := request.definition.output) is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema_format(output)}
        return HttpRequest(
            path="/chat/completions",
            body=body,
            items_field="messages",
            items=self._messages(request, with_tools=with_tools),
            timeout=request.timeout,
            new_assembler=partial(ChatAssembler, request.on_text, request.written) if request.on_text else None,
            on_call=request.on_call,
        )

    def _messages(self, request: Request, *, with_tools: bool) -> Sequence[str]:
        """The messages as the model's endpoint takes them, as JSON."""
        words = self._adapted.of(request.model)
        items: Sequence[str] = results_first(request.items, result='{"role":"tool"', user='{"role":"user"')
        if left_out := {word.removeprefix("no_") for word in words if word.startswith("no_")}:
            items = without_fields(items, left_out)
        if instructions := request.definition.instructions:
            items = [to_json({"role": "system", "content": instructions}), *items]
        ids = {} if words & {"short_ids", LEGAL_IDS} else own_ids(request.messages, self.data_key)
        write_call = None if with_tools else request.call_as_text
        if not (ids or write_call or words & RULES.keys()):
            return items
        messages = [json.loads(item) for item in items]
        if write_call is not None:
            messages, words = _without_tool_messages(messages, write_call), words | {"roles_alternate"}
        return [to_json(message) for message in strict_messages(messages, words, ids)]


def create(worker: AvailableProviders, endpoint: Endpoint | None) -> OpenAIChat:
    """The provider of an endpoint; None: the default one."""
    return OpenAIChat(worker.openai_client(endpoint))


def _refuses_tools(request: Request, refused: ModelRequestError) -> bool:
    """Whether a refusal is one of tools, where calls may be in the text."""
    is_possible = request.call_as_text is not None and refused.status != 401
    return is_possible and bool(_refusals.TOOLS.search(refused.message))


def _without_tool_messages(
    messages: Sequence[dict[str, Any]], write_call: Callable[[str, str], str]
) -> list[dict[str, Any]]:
    """The messages for a server without tools: calls are part of the assistant's text, results are the user's messages."""
    names: dict[str, str] = {}
    converted: list[dict[str, Any]] = []
    for message in messages:
        plain: dict[str, Any] = {"role": message["role"], "content": message["content"] or ""}
        for call in message.get("tool_calls", ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            names[call["id"]] = name
            plain["content"] = "\n".join(filter(None, (plain["content"], write_call(name, arguments))))
        if message["role"] == "tool":
            name = names.get(message["tool_call_id"], "the tool")
            plain = {"role": "user", "content": f"Result of {name}:\n{message['content']}"}
        converted.append(plain)
    return converted


def _parts(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part.text} if isinstance(part, Text) else _media_part(part) for part in parts]


def _media_part(part: Media) -> dict[str, Any]:
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": part.url or part.data_url}}
    if part.type == "audio":
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": AUDIO_FORMATS[part.media_type]}}
    return {"type": "file", "file": {"filename": part.name or "file.pdf", "file_data": part.data_url}}


def _tool_items(message: ToolMessage) -> list[dict[str, Any]]:
    """The result; images and files of it, which a result cannot have here, in a user message after it."""
    item = {"role": "tool", "tool_call_id": legal_id(message.call_id), "content": said(message.text, NO_RESULT)}
    if not message.content:
        return [item]
    media = media_of(message.content)
    labels = (
        part.text if isinstance(part, Text) else f"[{part.label}: in the next message]" for part in message.content
    )
    item["content"] = "\n\n".join(labels)
    heading = {"type": "text", "text": f"[From the result of {message.name}, call {legal_id(message.call_id)}:]"}
    return [item, {"role": "user", "content": [heading, *map(_media_part, media)]}]


def _assistant_items(message: AssistantMessage, data_key: str) -> list[dict[str, Any]]:
    # OpenAI itself sends null beside calls; with neither text nor calls, servers accept only a text.
    text = text_with_description(message, data_key)
    content = None if message.tool_calls and not text.strip() else said(text)
    item: dict[str, Any] = {"role": "assistant", "content": content}
    if message.tool_calls:
        item["tool_calls"] = [
            {
                "id": legal_id(call.id),
                "type": "function",
                "function": {"name": legal_name(call.name), "arguments": legal_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return with_kept_fields(item, (message.provider_data or {}).get(data_key))


@wrong_types_are_unavailable()
def _reply(
    answer: dict[str, Any], data_key: str = DATA_KEY, key_variable: str = OpenAIClient.default_key_variable
) -> Reply:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    raise_told(answer, key_variable, lacks="" if isinstance(message, dict) else "choices, or no message in it")
    assert isinstance(choice, dict)
    assert isinstance(message, dict)
    text, refusal = content_text(message.get("content")), as_text(message.get("refusal"))
    files, audio = MadeFiles(), message.get("audio")
    message = without_bytes(message, files)
    text = text or refusal or (as_text(audio.get("transcript")) if isinstance(audio, dict) else "")
    calls, kept = _calls(message), kept_fields(message)
    data: dict[str, JsonValue] | None = {data_key: kept} if kept else None
    said = choice.get("finish_reason")
    reason = said.lower() if isinstance(said, str) else said
    return Reply(
        text=text,
        calls=calls,
        finish_reason=finish_reason(reason, bool(calls), _CUT_OFF, _FILTERED, is_refused=bool(refusal)),
        usage=openai_usage(answer),
        response_id=as_text(answer.get("id")),
        model=as_text(answer.get("model")),
        provider_data=data,
        ids_key=data_key,
        hosted_calls=hosted_calls(hosted_work(kept)),
        citations=citations_of(message, text),
        files=files.parts,
        own_finish_reason=unknown_reason(said, (*_ENDED, *_CUT_OFF, *_FILTERED)),
    )


def _calls(message: dict[str, Any]) -> list[ToolCall]:
    """The calls exactly as the model wrote them. A missing id stays empty: every call gets a unique id later."""
    items = message.get("tool_calls")
    if not isinstance(items, list) or not items:
        function_call = message.get("function_call")
        items = [{"function": function_call}] if isinstance(function_call, dict) else []
    calls = []
    for item in items:
        if is_custom(item):
            continue
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(function, dict):
            item, function = {}, {}  # still a call: the model gets the feedback that there is no such tool
        name, arguments = as_text(function.get("name")), as_text(function.get("arguments"))
        calls.append(ToolCall(id=as_text(item.get("id")), name=name, arguments=arguments))
    return calls
