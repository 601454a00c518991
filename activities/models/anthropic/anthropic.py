"""`anthropic:NAME`: Anthropic's Messages API, through its official package."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mulligan.activities.models import _refusals
from mulligan.activities.models._adapted import Adapted
from mulligan.activities.models._deferred_tools import deferred_tools, with_references
from mulligan.activities.models._hosted_work import hosted_calls
from mulligan.activities.models._json_fields import (
    MOST_TOKENS,
    as_text,
    finish_reason,
    shorten_layout,
    to_json,
    unknown_reason,
)
from mulligan.activities.models._model_settings import settings_for, tool_choice_of
from mulligan.activities.models._plain_properties import PlainProperties
from mulligan.activities.models._read_response import check_parts, wrong_types_are_unavailable
from mulligan.activities.models._sdk_client import HttpRequest, SdkProvider
from mulligan.activities.models._strict_schema import schema_in_words, strict
from mulligan.activities.models._told_errors import count_failed, error_in, raise_told
from mulligan.activities.models.anthropic._anthropic_assembler import AnthropicAssembler, usage_of
from mulligan.activities.models.anthropic._anthropic_blocks import (
    CONTAINER,
    citations_of,
    container_of,
    continues_text,
    files_of,
    hosted_work,
    is_plain_text,
    more_of_call,
)
from mulligan.activities.models.anthropic._anthropic_client import AnthropicClient
from mulligan.activities.models.anthropic._anthropic_turns import (
    THINKING,
    AnthropicTurn,
    called_tools,
    encode,
    mark_end,
    mark_for_cache,
    merge,
    paused_turn,
)
from mulligan.activities.models.fit_content import without_content
from mulligan.activities.models.own_ids import LEGAL_IDS, own_ids, with_own_ids
from mulligan.activities.models.protocol import Reply, Request, Unavailable
from mulligan.content import Media
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Citation, Message, ToolCall, Usage
from mulligan.wire.agent_facts import OutputFormat, ToolDefinition

if TYPE_CHECKING:
    from mulligan.activities.models.available_providers import AvailableProviders

DATA_KEY = "anthropic"
"""The key of this provider in a message's `provider_data` (that of an endpoint has its name as well): the answer's blocks,
in their order. Thinking is complete, with its signature, and so is what Mulligan does not interpret; of text and calls only
the place is noted, and the fields that are not interpreted."""
MAX_TOKENS = 32_000
"""Tokens of an answer unless the agent's settings say otherwise: the API requires a number. Models with a lower limit name
it in their refusal, and are asked again."""
CACHED = {"type": "ephemeral"}
"""Marks the end of what the API caches, for five minutes."""
TOKEN_SETTINGS = ("max_output_tokens", "max_completion_tokens")
"""OpenAI's names for `max_tokens`."""
GONE_TOOL = "No longer available."
"""The description of a tool that the conversation's calls name, where the agent has no tools: the API requires it."""
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
FIELDS = ("type", "thinking", "signature", "data")
"""The fields of thinking that the API takes back."""
NO_SAMPLING, NO_DEFERRED = "no_sampling", "no_deferred_tools"
"""The words for models that refuse settings of sampling, and tools that are deferred."""
SAMPLING = ("temperature", "top_p", "top_k")
"""Settings that newer models refuse. An agent that may call other models as well can still have them."""
MOST_PAUSES = 10
"""How often an answer that the API has paused is continued within a step. After that it is taken as cut off."""
CONTAINER_MARGIN = 30
"""Seconds before its end from which on a container is not named any more."""
_PAUSED = "pause_turn"
_CUT_OFF = ("max_tokens", "model_context_window_exceeded", _PAUSED)
_ENDED = ("", "end_turn", "stop_sequence", "tool_use", "refusal")
_LENGTH = {"text": 2, "tool_use": 1}
"""The number of fields of a place that has nothing to be sent back."""


class Anthropic(SdkProvider[AnthropicClient]):
    """The Messages API, at the client's endpoint. The client reads its key at the first request."""

    name = "anthropic"
    background = batch = None

    def __init__(self, client: AnthropicClient | None = None) -> None:
        self._client = client or AnthropicClient()
        self.data_key = self._client.data_key(DATA_KEY)
        self._max_tokens: dict[str, int] = {}
        """The largest `max_tokens` of models that named it."""
        self._without_format: set[tuple[str, str]] = set()
        """The formats, with their models, that were refused."""
        self._adapted = Adapted()

    def encode(self, message: Message) -> list[Any]:
        """Return the message as a turn of the Messages API, as JSON."""
        return list(encode(message, self.data_key))

    def takes(self, part: Media, role: Literal["user", "tool"]) -> bool:  # noqa: ARG002 - both alike
        """Whether a part is an image of a common format, or a PDF."""
        return part.media_type in (IMAGES if part.type == "image" else ("application/pdf",))

    async def complete(self, request: Request) -> Reply:
        """Request an answer.

        What a model refuses and the conversation can do without is left out, and the model asked again at once: a larger
        `max_tokens` than it has, another model's thinking, settings of sampling, deferred tools, and a format that it does
        not support.
        The schema is then part of the instructions; answers are validated in either case. Images and files that it
        refuses are described in text.

        Raises:
            ModelRequestError: the endpoint refuses the request, and would refuse it again.
            Unavailable: the request may be retried.
        """
        with_thinking, is_described = True, False
        self._adapted.recall(request)
        properties = PlainProperties.of(request)
        request = properties.request(request)
        while True:
            try:
                reply = await self._request(request, with_thinking=with_thinking)
                return replace(properties.reply(reply), adapted=sorted(self._adapted.of(request.model)))
            except ModelRequestError as refused:
                if refused.status != 400:
                    raise
                if with_thinking and _refusals.ANTHROPIC_THINKING.search(refused.message) and _has_thinking(request):
                    with_thinking = False
                elif not self._has_learned(request, refused.message):
                    if is_described or (described := without_content(request, self, refused)) is None:
                        raise
                    request, is_described = described, True

    def _has_learned(self, request: Request, message: str) -> bool:
        """Whether a refusal says what the model's requests must not have, and that was not known."""
        model, format_key = request.model, _format_key(request)
        if (limit := _refusals.ANTHROPIC_LIMIT.search(message)) and self._max_tokens.get(model, MOST_TOKENS) > int(
            limit[1]
        ):
            self._max_tokens[model] = int(limit[1])
            return True
        if _refusals.ANTHROPIC_SAMPLING.search(message) and self._adapted.learn(model, [NO_SAMPLING]):
            return bool(settings_for(request, DATA_KEY).keys() & set(SAMPLING))
        if _refusals.IDS.search(message) and self._adapted.learn(model, [LEGAL_IDS]):
            return bool(own_ids(request.messages, self.data_key))
        if self._defers(request) and _refusals.DEFERRED_TOOLS.search(message):
            return self._adapted.learn(model, [NO_DEFERRED])
        if format_key and format_key not in self._without_format and _refusals.ANTHROPIC_FORMAT.search(message):
            self._without_format.add(format_key)
            return True
        return False

    def _defers(self, request: Request) -> bool:
        is_possible = self._client.is_default and NO_DEFERRED not in self._adapted.of(request.model)
        return request.unseen is not None and is_possible

    async def _request(self, request: Request, *, with_thinking: bool) -> Reply:
        items = with_references(request, self.encode) if self._defers(request) else request.items
        if LEGAL_IDS not in self._adapted.of(request.model):
            items = with_own_ids(items, own_ids(request.messages, self.data_key))
        turns = merge(items, with_thinking=with_thinking)
        mark_for_cache(turns)
        body = self._body(request, turns)
        if self._client.is_of_cloud and "cache_control" in body:
            mark_end(turns, body.pop("cache_control"))
        answer = await self._post(request, body, turns)
        blocks, usage = _blocks(answer), usage_of(answer.get("usage"))
        last_usage, pauses = None, 0
        while answer.get("stop_reason") == _PAUSED and blocks and not _calls_tools(blocks) and pauses < MOST_PAUSES:
            pauses += 1
            if (container := _container(answer.get("container"))) is not None:
                body["container"] = container["id"]
            answer = await self._post(request, body, [*turns, paused_turn(blocks)], before=blocks, spent=usage)
            check_parts(len(blocks := [*blocks, *_blocks(answer)]))
            last_usage = usage_of(answer.get("usage"))
            usage += last_usage
        if pauses and error_in(answer) is None:
            answer = {**answer, "content": blocks}
        try:
            reply = _reply(answer, self.data_key, self._client.key_variable)
        except (Unavailable, ModelRequestError):
            count_failed(answer, request.written)
            raise
        return replace(reply, usage=usage, last_usage=last_usage)

    async def _post(
        self,
        request: Request,
        body: Mapping[str, Any],
        turns: Sequence[AnthropicTurn],
        *,
        before: Sequence[dict[str, Any]] = (),
        spent: Usage | None = None,
    ) -> dict[str, Any]:
        """The answer to turns. `before`: the blocks that it continues, for which the tokens `spent` were counted."""
        on_text, written = request.on_text, request.written
        return await self._client.post(
            HttpRequest(
                path="/v1/messages",
                body=body,
                items_field="messages",
                items=[turn.to_json() for turn in turns],
                timeout=request.timeout,
                new_assembler=partial(AnthropicAssembler, on_text, written, before=before, spent=spent)
                if on_text
                else None,
                on_call=request.on_call,
            )
        )

    def _body(self, request: Request, turns: list[AnthropicTurn]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": request.model, "cache_control": CACHED, **settings_for(request, DATA_KEY)}
        _set_max_tokens(body, self._max_tokens.get(request.model, MOST_TOKENS))
        if NO_SAMPLING in self._adapted.of(request.model):
            body = {name: value for name, value in body.items() if name not in SAMPLING}
        if _must_not_think(body, turns):
            body["thinking"] = {"type": "disabled"}
        if "stop" in body:
            stop = body.pop("stop")
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        _set_tools(body, request)
        if request.unseen is not None and self._defers(request):
            body["tools"] = deferred_tools(body["tools"], request.unseen, _tool)
        if container := self._container_of(request, body):
            body.setdefault("container", container)
        instructions = request.definition.instructions
        if (output := request.definition.output) is not None:
            schema = None if _format_key(request) in self._without_format else _format_of(output)
            if schema is None:
                instructions = "\n\n".join(filter(None, (instructions, schema_in_words(output.json_schema))))
            else:
                settings = body.get("output_config")
                others = settings if isinstance(settings, Mapping) else {}
                body["output_config"] = {**others, "format": {"type": "json_schema", "schema": schema}}
        if instructions.strip():
            body["system"] = [{"type": "text", "text": instructions, "cache_control": CACHED}]
        return body

    def _container_of(self, request: Request, body: Mapping[str, Any]) -> str | None:
        """The container of the newest answer that names one, if a tool of the provider is there and it has not expired."""
        tools = body.get("tools")
        if not any(tool.get("type", "custom") != "custom" for tool in tools or () if isinstance(tool, Mapping)):
            return None
        for message in reversed(request.messages):
            data = message.provider_data if isinstance(message, AssistantMessage) else None
            if data and (named := container_of(data.get(self.data_key))):
                return named[0] if _is_ahead(named[1]) else None
        return None


def create(_worker: AvailableProviders, endpoint: Endpoint | None) -> Anthropic:
    """The provider of an endpoint; None: the default one."""
    return Anthropic(AnthropicClient(endpoint))


def _is_ahead(at: str) -> bool:
    """Whether a time (ISO 8601) is in the future, or not known."""
    try:
        return datetime.fromisoformat(at).timestamp() > time.time() + CONTAINER_MARGIN
    except ValueError:
        return True


def _set_max_tokens(body: dict[str, Any], limit: int) -> None:
    """Set the required `max_tokens`. Thinking counts against it: its budget is added to the usual room for the answer."""
    stated = [body.pop(name) for name in TOKEN_SETTINGS if name in body]
    thinking = body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    default = MAX_TOKENS + (budget if isinstance(budget, int) else 0)
    wanted = body.get("max_tokens", stated[0] if stated else default)
    body["max_tokens"] = min(wanted, limit) if isinstance(wanted, int) else wanted


def _must_not_think(body: Mapping[str, Any], turns: list[AnthropicTurn]) -> bool:
    """Whether the request would be refused with thinking turned on.

    With a budget for thinking, an answer whose calls have just got their results must begin with its thinking. It does not
    if another provider wrote it, or a model that did not think.
    """
    thinking = body.get("thinking")
    if not isinstance(thinking, Mapping) or thinking.get("type") != "enabled" or len(turns) < 2:
        return False
    return turns[-1].parts[0].startswith('{"type":"tool_result"') and not turns[-2].begins_with_thinking


def _set_tools(body: dict[str, Any], request: Request) -> None:
    choice = tool_choice_of(body)
    body.pop("tool_choice", None)
    parallel = body.pop("parallel_tool_calls", None) is not False and request.parallel_tool_calls
    hosted = request.definition.tools_of(DATA_KEY)
    if not request.definition.tools and not hosted:
        if gone := called_tools(request.items):
            schema = {"type": "object"}
            body["tools"] = [{"name": name, "description": GONE_TOOL, "input_schema": schema} for name in gone]
            body["tool_choice"] = {"type": "none"}
        return
    body["tools"] = [*map(_tool, request.definition.tools), *hosted]
    if isinstance(choice, tuple):
        kinds = {"required": {"type": "any"}, "function": {"type": "tool", "name": choice[1]}}
        choice = kinds.get(choice[0], {"type": choice[0]})
    if not parallel:
        choice = choice if isinstance(choice, Mapping) else {"type": "auto"}
        if choice.get("type") != "none":
            choice = {**choice, "disable_parallel_tool_use": True}
    if choice is not None:
        body["tool_choice"] = choice


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _has_thinking(request: Request) -> bool:
    return any(turn.has_thinking for turn in merge(request.items))


def _format_key(request: Request) -> tuple[str, str] | None:
    output = request.definition.output
    return None if output is None else (request.model, to_json(output.json_schema))


def _format_of(output: OutputFormat) -> dict[str, Any] | None:
    """The schema in the form that the API accepts, or None if it has none: see `_strict_schema`."""
    from anthropic import transform_schema

    schema = strict(output.json_schema)
    return None if schema is None else transform_schema(schema)


@wrong_types_are_unavailable()
def _reply(answer: dict[str, Any], data_key: str, key_variable: str) -> Reply:
    content = answer.get("content")
    raise_told(answer, key_variable, lacks="" if isinstance(content, list) else "content")
    assert isinstance(content, list)
    reason, blocks = answer.get("stop_reason"), _blocks(answer)
    if reason == _PAUSED and _calls_tools(blocks):
        reason = "tool_use"
    text, calls, layout, citations = _read_blocks(blocks, is_cut_off=reason in _CUT_OFF)
    if container := _container(answer.get("container")):
        layout.append(container)
    details = answer.get("stop_details")
    details = details if isinstance(details, dict) else {}
    return Reply(
        text=text or as_text(details.get("explanation")),
        calls=calls,
        finish_reason=finish_reason(reason, bool(calls), _CUT_OFF, is_refused=reason == "refusal"),
        usage=usage_of(answer.get("usage")),
        response_id=as_text(answer.get("id")),
        model=as_text(answer.get("model")),
        provider_data={data_key: layout} if layout else None,
        ids_key=data_key,
        hosted_calls=hosted_calls(hosted_work(blocks)),
        files=files_of(blocks).parts,
        citations=citations,
        reason=as_text(details.get("category")),
        own_finish_reason=unknown_reason(reason, (*_ENDED, *_CUT_OFF)),
    )


def _read_blocks(
    blocks: list[dict[str, Any]], *, is_cut_off: bool
) -> tuple[str, list[ToolCall], list[Any], list[Citation]]:
    """The text, the calls, the places of what has to be sent back, and the citations of an answer."""
    text, texts = "", 0
    calls: list[ToolCall] = []
    layout: list[Any] = []
    cited: list[tuple[int, dict[str, Any]]] = []
    for number, block in enumerate(blocks):
        kind = block.get("type")
        if kind in THINKING:
            layout.append({name: value for name, value in block.items() if name in FIELDS})
        elif kind == "text" and (written := as_text(block.get("text"))):
            text += "" if not text or continues_text(number, blocks) else "\n\n"
            cited.append((len(text), block))
            text += written
            texts += 1
            layout.append({"type": "text", "text": written} if is_plain_text(block) else block)
        elif kind == "tool_use":
            arguments = _arguments(block.get("input"), is_cut_off=is_cut_off and number == len(blocks) - 1)
            calls.append(ToolCall(id=as_text(block.get("id")), name=as_text(block.get("name")), arguments=arguments))
            layout.append({"type": "tool_use", **more_of_call(block)})
        elif kind != "text":
            layout.append(block)
    is_needed = any(
        place["type"] not in ("text", "tool_use") or len(place) > _LENGTH[place["type"]] for place in layout
    )
    layout = shorten_layout(layout, texts, text="text", call="tool_use") if is_needed else []
    citations = [each for start, block in cited for each in citations_of(block, start, len(text))]
    return text, calls, layout, citations


def _blocks(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = answer.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _calls_tools(blocks: Sequence[Mapping[str, Any]]) -> bool:
    return any(block.get("type") == "tool_use" for block in blocks)


def _container(container: object) -> dict[str, Any] | None:
    """The place of the container in which the provider ran code; None if the answer names none."""
    if not isinstance(container, dict) or not isinstance(container.get("id"), str):
        return None
    return {"type": CONTAINER, "id": container["id"], "expires_at": as_text(container.get("expires_at"))}


def _arguments(written: object, *, is_cut_off: bool) -> str:
    """The arguments as text. They are an object without streaming, and the model's own text with it.

    Those of a call at which the answer was cut off may be an object all the same: then its end is left out, so that the
    call is not executed with a part of its arguments.
    """
    if isinstance(written, str) and written.strip():
        return written
    text = as_text(written or {})
    return text[:-1] if is_cut_off else text
