"""`openai:NAME`: the Responses API. Nothing is stored at the provider: each request has the whole conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

from mulligan.activities.models import _refusals
from mulligan.activities.models._adapted import Adapted
from mulligan.activities.models._deferred_tools import deferred_tools, search_tool, with_searches
from mulligan.activities.models._hosted_work import hosted_calls, text_with_description
from mulligan.activities.models._json_fields import as_text, finish_reason, shorten_layout, to_json, token_count
from mulligan.activities.models._legal_calls import NO_RESULT, NO_TEXT, legal_arguments, legal_id, legal_name, said
from mulligan.activities.models._made_files import MadeFiles
from mulligan.activities.models._plain_properties import PLAIN_PROPERTIES, PlainProperties
from mulligan.activities.models._read_response import wrong_types_are_unavailable
from mulligan.activities.models._refused_content import RefusedContent
from mulligan.activities.models._sdk_client import HttpRequest, SdkProvider
from mulligan.activities.models._strict_schema import strict_tool
from mulligan.activities.models._told_errors import raise_told
from mulligan.activities.models.openai._openai_batches import OpenAIBatches
from mulligan.activities.models.openai._openai_client import OpenAIClient, json_schema_format, settings_of
from mulligan.activities.models.openai._openai_usage import openai_usage
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.activities.models.openai._responses_items import (
    citations_in,
    hosted_work,
    includes_of,
    is_plain_message,
    more_of_call,
    sent_items,
    without_bytes,
)
from mulligan.activities.models.own_ids import LEGAL_IDS, own_ids, with_own_ids
from mulligan.activities.models.protocol import (
    AnswersInBackground,
    AnswersInBatches,
    CreatedResponse,
    FinishReason,
    Reply,
    Request,
    Unavailable,
)
from mulligan.content import Media, Part, Text
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.tool import FIND_TOOLS
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from mulligan.wire.agent_facts import ToolDefinition

if TYPE_CHECKING:
    from mulligan.activities.models.available_providers import AvailableProviders

T = TypeVar("T")
NO_REASONING, NO_DEFERRED = "no_reasoning", "no_deferred_tools"
"""The words for models that refuse to include reasoning, and tools that are deferred."""
MOST_TOOLS = 128
"""Tools of a request, those that are deferred included."""
_CALL, _OUTPUT = '{"type":"function_call","', '{"type":"function_call_output","'
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
DATA_KEY = "openai"
"""The key of this provider in a message's `provider_data` (that of an endpoint has its name as well): a list of the
answer's items, in their order."""
IDEMPOTENCY = "Idempotency-Key"
"""The header for the key of a request. The package has an option for it, which it does not send to OpenAI."""
ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""A request must include it: the server stores no reasoning, so it must be sent back."""


class OpenAIResponses(SdkProvider[OpenAIClient]):
    """The Responses API, at the client's endpoint. The client reads its key at the first request."""

    name = "openai"
    batch_path = "/v1/responses"

    def __init__(self, client: OpenAIClient | None = None) -> None:
        self._client = client or OpenAIClient()
        self.data_key = self._client.data_key(DATA_KEY)
        self._not_streamed_in_background: set[str] = set()
        self._adapted = Adapted()
        self._refused_content = RefusedContent(self._adapted)
        self._labels = self._client.accepted_labels(self._adapted)

    @property
    def background(self) -> AnswersInBackground:
        """This provider itself: it answers in the background."""
        return self

    @property
    def batch(self) -> AnswersInBatches:
        """This provider itself: it answers in batches."""
        return self

    def encode(self, message: Message) -> list[Any]:
        """Return the message as input items, as JSON: an assistant's message may be several."""
        return [to_json(item) for item in _items(message, self.data_key)]

    def takes(self, part: Media, role: Literal["user", "tool"]) -> bool:  # noqa: ARG002 - both alike
        """Whether a part is an image of a common format, or a PDF."""
        return part.media_type in (IMAGES if part.type == "image" else ("application/pdf",))

    async def complete(self, request: Request) -> Reply:
        """Request an answer.

        Raises:
            ModelRequestError: the endpoint refuses the request, and would refuse it again.
            Unavailable: the request may be retried.
        """

        async def send(request: Request, reasoning: bool) -> Reply:
            sent = self._http_request(request, reasoning)
            allowed = {"max_output_tokens": sent.body.get("max_output_tokens")}
            reply = await self._ask(sent, request.written, lambda answer: self.reply_of({**allowed, **answer}))
            return self._properties(request).reply(reply)

        reply = await self._send_without_what_is_refused(request, send)
        return replace(reply, adapted=sorted(self._adapted.of(request.model)))

    async def start_in_background(
        self, request: Request, *, key: str, metadata: Mapping[str, str], streamed: bool = False
    ) -> CreatedResponse:
        """Create a background response, stored at the provider until it is deleted.

        Args:
            request: What to ask.
            key: Of the request: an endpoint that supports idempotency answers a second one with the first one's response.
            metadata: Added to the response's metadata.
            streamed: Whether its text shall be readable while the model writes it. Only the first event is read here. Where
                the endpoint refuses that, the response is created without.

        Raises:
            ModelRequestError, Unavailable: as for `complete`.
        """

        async def send(request: Request, reasoning: bool) -> CreatedResponse:
            ordinary = self._http_request(request, reasoning)
            fields = {
                "background": True,
                "store": True,
                "metadata": {**(ordinary.body.get("metadata") or {}), **metadata},
            }
            headers = {IDEMPOTENCY: f"{key}-{'reasoning' if reasoning else 'plain'}"}
            create = replace(ordinary, body={**ordinary.body, **fields}, headers=headers, new_assembler=None)
            if streamed and request.model not in self._not_streamed_in_background:
                created = await self._create_streamed(create, request.model)
                if created is not None:
                    return created
            return CreatedResponse(await self._client.post(create))

        return await self._send_without_what_is_refused(request, send)

    async def _create_streamed(self, create: HttpRequest, model: str) -> CreatedResponse | None:
        """The response of a request with `stream`, from its first event; None: the endpoint refuses to stream it."""
        try:
            async with self._client.events("post", create.path, create.timeout, request=create) as events:
                async for event in events:
                    if event.get("object") == "response":
                        return CreatedResponse(event)  # the server has ignored `stream`
                    if isinstance(response := event.get("response"), dict) and response.get("id"):
                        return CreatedResponse(response, sequence_of(event))
                    raise_told(event, self._client.key_variable)
        except (ModelRequestError, Unavailable) as failed:
            is_refusal = failed.status in (400, 422) or (failed.status or 0) >= 500
            if not is_refusal or not _refusals.STREAMING.search(str(failed)):
                raise
            self._not_streamed_in_background.add(model)
            return None
        # The next attempt does not stream, under the same key: whether a response was created is not known.
        self._not_streamed_in_background.add(model)
        raise Unavailable("the endpoint's stream of a background response does not begin with the response")

    def background_events(
        self, response_id: str, after: int, timeout: float
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """The events of a background response after the one with a sequence number, during the block.

        Raises:
            ModelRequestError: the endpoint cannot stream this response, or not any more.
            Unavailable: the request may be retried.
        """
        query = {"stream": "true", "starting_after": str(after)}
        return self._client.events("get", f"/responses/{quote(response_id, safe='')}", timeout, query=query)

    async def background_response(
        self, response_id: str, method: Literal["get", "delete"], timeout: float
    ) -> dict[str, Any]:
        """Read or delete a background response.

        Raises:
            ModelRequestError: the endpoint refuses that; its status is 404 if there is no such response.
            Unavailable: the request may be retried.
        """
        return await self._client.call(method, f"/responses/{quote(response_id, safe='')}", timeout)

    async def cancel_background_response(self, response_id: str, timeout: float) -> dict[str, Any]:
        """Cancel a background response, and return it.

        Raises:
            ModelRequestError, Unavailable: as for `background_response`.
        """
        return await self._client.call("post", f"/responses/{quote(response_id, safe='')}/cancel", timeout)

    def batch_body(self, request: Request, *, plain: bool) -> bytes:
        """The body of the request as part of a batch. `plain`: without reasoning."""
        request = replace(self._refused_content.without(request), unseen=None)  # a refusal would be learned too late
        reasoning = not plain and NO_REASONING not in self._adapted.of(request.model)
        return self._http_request(request, reasoning).content({})

    def may_take_plain(self, request: Request, error: ModelRequestError | Unavailable) -> bool:
        """Whether a batch's request that was refused may be sent again without reasoning, images or files."""
        if self._refused_content.learn(request.model, request.items, error):
            return True
        is_refusal = isinstance(error, ModelRequestError) and error.status in (400, 422)
        return is_refusal and bool(_refusals.REASONING.search(str(error)))

    @property
    def batches(self) -> OpenAIBatches:
        """The Files and Batch API of the endpoint."""
        return OpenAIBatches(self._client)

    def reply_of(self, response: dict[str, Any]) -> Reply:
        """The answer in a response that has ended.

        Raises:
            ModelRequestError: it has failed, and would fail again.
            Unavailable: it has failed, or was cancelled.
        """
        return replace(_reply(response, self.data_key, self._client.key_variable), ids_key=self.data_key)

    async def _send_without_what_is_refused(self, request: Request, send: Callable[[Request, bool], Awaitable[T]]) -> T:
        """Send a request, with reasoning or without as the second argument of `send` says.

        Reasoning is always requested and sent back. A model without reasoning refuses the request for it, and a model
        refuses the reasoning of another (a run's model can change): then it is asked again at once without reasoning. Where
        it refuses images or files, they are described in text; where it refuses deferred tools, it gets those that were
        found.

        Raises:
            ModelRequestError: the endpoint refuses the request, and would refuse it again.
            Unavailable: the request may be retried.
        """
        self._adapted.recall(request)
        if not self._client.is_default or NO_DEFERRED in self._adapted.of(request.model):
            request = replace(request, unseen=None)

        def attempt(request: Request) -> Awaitable[T]:
            return self._with_or_without_reasoning(request, send)

        try:
            return await self._refused_content.send(request, attempt)
        except ModelRequestError as error:
            is_refusal = error.status in (400, 422) and _refusals.DEFERRED_TOOLS.search(error.message)
            if request.unseen is None or not is_refusal:
                raise
        self._adapted.learn(request.model, [NO_DEFERRED])
        return await self._refused_content.send(replace(request, unseen=None), attempt)

    async def _with_or_without_reasoning(self, request: Request, send: Callable[[Request, bool], Awaitable[T]]) -> T:
        try:
            return await self._try_reasoning(request, send)
        except ModelRequestError as refused:
            words = {PLAIN_PROPERTIES: _refusals.PROPERTIES, LEGAL_IDS: _refusals.IDS}
            named = [word for word, says in words.items() if says.search(refused.message)]
            if not self._labels.learn(request.model, refused) and not self._adapted.learn(request.model, named):
                raise
        return await self._with_or_without_reasoning(request, send)

    async def _try_reasoning(self, request: Request, send: Callable[[Request, bool], Awaitable[T]]) -> T:
        has_no_reasoning = False
        if NO_REASONING not in self._adapted.of(request.model):
            try:
                return await send(request, True)
            except ModelRequestError as refused:
                if refused.status not in (400, 422) or not _refusals.REASONING.search(refused.message):
                    raise
            has_no_reasoning = not any(map(_is_reasoning, request.items))
        reply = await send(request, False)
        if has_no_reasoning:  # the request had no reasoning in it, so the model refused the field `include`
            self._adapted.learn(request.model, [NO_REASONING])
        return reply

    def _properties(self, request: Request) -> PlainProperties:
        return PlainProperties.of(request) if PLAIN_PROPERTIES in self._adapted.of(request.model) else PlainProperties()

    def _http_request(self, request: Request, reasoning: bool) -> HttpRequest:
        request = self._properties(request).request(request)
        items = list(request.items if reasoning else filter(None, map(_without_reasoning, request.items)))
        items = _with_callers(items)
        if request.unseen is not None:
            items = with_searches(items, request.unseen, _tool)
        if LEGAL_IDS not in self._adapted.of(request.model):
            items = with_own_ids(items, own_ids(request.messages, self.data_key))
        return HttpRequest(
            path="/responses",
            body=_body(request, self._labels.of(request.model), reasoning=reasoning),
            items_field="input",
            items=items,
            timeout=request.timeout,
            new_assembler=partial(ResponsesAssembler, request.on_text, request.written) if request.on_text else None,
            on_call=request.on_call,
        )


def create(worker: AvailableProviders, endpoint: Endpoint | None) -> OpenAIResponses:
    """The provider of an endpoint; None: the default one."""
    return OpenAIResponses(worker.openai_client(endpoint))


def sequence_of(event: Mapping[str, Any]) -> int | None:
    """The sequence number of a stream's event; None if it has none that can be used."""
    number = event.get("sequence_number")
    return number if isinstance(number, int) and 0 <= number < 2**53 else None


def _items(message: Message, data_key: str) -> list[dict[str, Any]]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": _parts(message.content) if message.content else said(message.text)}]
        case ToolMessage():
            output = _parts(message.content) if message.content else said(message.text, NO_RESULT)
            return [{"type": "function_call_output", "call_id": legal_id(message.call_id), "output": output}]
        case AssistantMessage():
            return _assistant_items(message, data_key)


def _parts(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [
        {"type": "input_text", "text": part.text} if isinstance(part, Text) else _media_part(part) for part in parts
    ]


def _media_part(part: Media) -> dict[str, Any]:
    if part.type == "image":
        return {"type": "input_image", "detail": "auto", "image_url": part.url or part.data_url}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file.pdf", "file_data": part.data_url}


def _body(request: Request, labels: Container[str], *, reasoning: bool) -> dict[str, Any]:
    body = {"model": request.model, "store": False, **settings_of(request, DATA_KEY, labels)}
    hosted = request.definition.tools_of(DATA_KEY)
    include = [name for name in body.pop("include", None) or [] if name != ENCRYPTED_REASONING]
    include += [name for name in includes_of(hosted) if name not in include]
    if reasoning:
        include.append(ENCRYPTED_REASONING)
    if include:
        body["include"] = include
    if request.definition.instructions:
        body["instructions"] = request.definition.instructions
    if request.definition.tools or hosted:
        # Strict mode is this API's default; it refuses every schema with an optional parameter.
        body["tools"] = [*map(_tool, request.definition.tools), *hosted]
        if request.unseen is not None:
            deferred = deferred_tools(body["tools"], request.unseen, _tool)
            plain = [tool for tool in deferred if "defer_loading" not in tool]
            # A search's result has the tools that it has found, so that more than a request may have need not be in it.
            body["tools"] = [*map(search_tool, deferred if len(deferred) <= MOST_TOOLS else plain)]
        choice = body.get("tool_choice")
        if isinstance(choice, Mapping) and isinstance(named := choice.get("function"), Mapping):
            # Chat Completions' form is accepted too, so that an agent's settings work with either provider.
            body["tool_choice"] = {"type": "function", "name": named.get("name")}
    if (output := request.definition.output) is not None:
        settings = body.get("text")
        others = settings if isinstance(settings, Mapping) else {}
        body["text"] = {**others, "format": {"type": "json_schema", **json_schema_format(output)}}
    return body


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {"type": "function", "strict": False, **strict_tool(tool)}


def _is_reasoning(item: str) -> bool:
    return item.startswith('{"type":"reasoning"')


def _with_callers(items: list[str]) -> list[str]:
    """The items, with the program that made a call on its output too, as the API wants it."""
    calls = [json.loads(item) for item in items if item.startswith(_CALL) and '"caller":' in item]
    callers = {call["call_id"]: call["caller"] for call in calls if "caller" in call}
    if not callers:
        return items
    return [
        to_json({**output, "caller": callers[output["call_id"]]})
        if item.startswith(_OUTPUT) and (output := json.loads(item))["call_id"] in callers
        else item
        for item in items
    ]


def _without_reasoning(item: str) -> str | None:
    """The item for a request without reasoning; None for reasoning itself.

    A hosted call has an id, by which the API wants the reasoning that it followed: it is described in text instead.
    """
    if _is_reasoning(item):
        return None
    if item.startswith(('{"role":', '{"type":"function_call')):
        return item
    work = [each.describe() for each in hosted_work([json.loads(item)])]
    return to_json({"role": "assistant", "content": "\n".join(work)}) if work else item


def _assistant_items(message: AssistantMessage, data_key: str) -> list[dict[str, Any]]:
    """The message's text and calls, with its reasoning and its hosted items, in the order of the items in `provider_data`.

    Text and calls that have no place there follow after them.
    """
    layout = _objects((message.provider_data or {}).get(data_key))
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
    remaining_text = text_with_description(message, data_key)
    for item in layout:
        match item:
            case {"type": "reasoning"}:
                items += _reasoning_items(item)
            case {"type": "message", "content": list()}:
                items += sent_items(item, layout)
                remaining_text = ""
            case {"type": "message"}:
                items += _text_items(as_text(item.get("text", remaining_text)), item.get("phase"))
                remaining_text = ""
            case {"type": "function_call"}:
                items += [{**call, **more_of_call(item)} for call in islice(calls, 1)]
            case _:
                items += sent_items(item, layout)
    items += [*_text_items(remaining_text), *calls]
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # the answer was cut off after it: the server refuses reasoning that nothing follows
    return items or [{"role": "assistant", "content": NO_TEXT}]


def _text_items(text: str, phase: object = None) -> list[dict[str, Any]]:
    item = {"role": "assistant", "content": text}
    return [] if not text.strip() else [{**item, "phase": phase} if isinstance(phase, str) else item]


@wrong_types_are_unavailable()
def _reply(
    answer: dict[str, Any], data_key: str = DATA_KEY, key_variable: str = OpenAIClient.default_key_variable
) -> Reply:
    output, status = answer.get("output"), answer.get("status")
    raise_told(answer, key_variable, lacks="" if isinstance(output, list) or status else "output")
    if not isinstance(output, list) or status not in ("completed", "incomplete", None):
        raise Unavailable(f"the endpoint's answer has status {status!r}, and no output that could be read")
    texts: list[str] = []
    calls: list[ToolCall] = []
    layout: list[Any] = []
    contents: list[tuple[int, Any]] = []
    is_refused, files = False, MadeFiles()
    output = [without_bytes(item, files) for item in _objects(output)]
    for item in output:
        match item:
            case {"type": "reasoning"}:
                layout += _reasoning_items(item)
            case {"type": "message", "content": content}:
                text, has_refusal = _read_content(content)
                is_refused = is_refused or has_refusal
                if text:
                    contents.append((sum(map(len, texts)) + 2 * len(texts), content))
                    texts.append(text)
                layout += _places_of_message(item, text)
            case {"type": "function_call"}:
                call_id, name, arguments = (as_text(item.get(key)) for key in ("call_id", "name", "arguments"))
                calls.append(ToolCall(id=call_id, name=name, arguments=arguments))
                layout.append({"type": "function_call", **more_of_call(item)})
            case {"type": "tool_search_call", "execution": "client"}:
                call_id, arguments = as_text(item.get("call_id")), as_text(item.get("arguments") or {})
                calls.append(ToolCall(id=call_id, name=FIND_TOOLS, arguments=arguments))
                layout.append({"type": "function_call"})
            case _:
                layout.append(item)
    text = "\n\n".join(texts)
    layout = shorten_layout(layout, len(texts), text="message", call="function_call")
    return Reply(
        text=text,
        calls=calls,
        finish_reason=_finish_reason(answer, bool(calls), is_refused),
        usage=openai_usage(answer),
        response_id=as_text(answer.get("id")),
        model=as_text(answer.get("model")),
        provider_data={data_key: layout} if layout else None,
        hosted_calls=hosted_calls(hosted_work(output)),
        citations=[each for start, content in contents for each in citations_in(content, start, len(text))],
        files=files.parts,
    )


def _places_of_message(item: dict[str, Any], text: str) -> list[dict[str, Any]]:
    if not is_plain_message(item):
        return [item]
    phase = {"phase": item["phase"]} if item.get("phase") else {}
    return [{"type": "message", **phase, "text": text}] if text else []


def _reasoning_items(item: dict[str, Any]) -> list[dict[str, Any]]:
    """A reasoning item with its input fields only: the API refuses it with `status` (BerriAI/litellm#13420).

    Without encrypted content it is left out: the server would look it up in its storage, where nothing is, and answer 404.
    """
    encrypted = item.get("encrypted_content")
    if not isinstance(encrypted, str) or not encrypted:
        return []
    fields = {"type": "reasoning", "id": as_text(item.get("id")), "summary": _texts(item.get("summary"))}
    content = _texts(item.get("content"))
    return [{**fields, **({"content": content} if content else {}), "encrypted_content": encrypted}]


def _texts(parts: object) -> list[dict[str, Any]]:
    return [{"type": part.get("type"), "text": as_text(part.get("text"))} for part in _objects(parts)]


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_content(content: object) -> tuple[str, bool]:
    """The text of a message, and whether it contains a refusal."""
    if not isinstance(content, list):
        return as_text(content), False
    parts = _objects(content)
    text = "".join(as_text(part.get("refusal" if part.get("type") == "refusal" else "text")) for part in parts)
    return text, any(part.get("type") == "refusal" for part in parts)


def _finish_reason(answer: dict[str, Any], has_calls: bool, is_refused: bool) -> FinishReason:
    if answer.get("status") != "incomplete":
        # Some servers say `completed` of an answer that has all the tokens that it was allowed.
        is_full = 0 < token_count(answer, "max_output_tokens") <= token_count(answer, "usage", "output_tokens")
        return "length" if is_full else finish_reason(None, has_calls, (), is_refused=is_refused)
    details = answer.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    ended = finish_reason(reason, has_calls, (), ("content_filter",))
    return ended if ended == "content_filter" else "length"
