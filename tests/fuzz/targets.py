"""One function for each parser and entrance. Whatever its input, it may raise only what the parser documents."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from google.protobuf.message import DecodeError
from hypothesis import strategies as st
from mcp.types import CallToolResult
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload

from mulligan import Agent, DeclarationError, InvalidRunInputError, ModelRequestError, Skills
from mulligan.activities.agent_files.agent_file import parse_agent_file
from mulligan.activities.agent_files.build_agent import build_agent
from mulligan.activities.agent_files.labels import MOST_LABELS_BYTES, parse_labels
from mulligan.activities.agent_files.named_parts import NamedParts
from mulligan.activities.answers.example_arguments import NoExample, example
from mulligan.activities.answers.repair_json import NotJson, parse_json, repair_json
from mulligan.activities.answers.size_limits import ARGUMENTS_BYTES, TEXT_CHARS
from mulligan.activities.calls_in_text.find_calls import find_calls
from mulligan.activities.mcp.call_result import result_parts, result_text
from mulligan.activities.mcp.response_limit import LineDecoder
from mulligan.activities.mcp.servers import _schemas
from mulligan.activities.models._read_response import read_stream
from mulligan.activities.models._strict_schema import strict
from mulligan.activities.models.google._google_schema import google_schema
from mulligan.activities.models.openai import openai_chat, openai_responses
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.activities.models.protocol import Unavailable
from mulligan.client.encryption import EncryptionCodec, parse_keys
from mulligan.client.event_position import EventTokenError
from mulligan.client.follow_events import EventFollower
from mulligan.output import Output
from mulligan.run_input import parse_run_input
from mulligan.schema.conversion import convert
from mulligan.schema.json_schema import property_names, schema_faults, schema_validator, tidy_schema
from mulligan.schema.schema_cost import check_size, is_cheap
from mulligan.schema.yaml_fields import MOST_DEPTH, MOST_VALUES, FileFault
from mulligan.serve.console.argument_form import fields_of
from mulligan.serve.console.waiting_page import _without_patterns
from mulligan.serve.json_body import read_json
from mulligan.serve.openai_api.input_items import chat_messages, input_messages, replies
from mulligan.serve.openai_api.item_ids import split_new_items
from mulligan.serve.problems import Problem
from mulligan.wire.compressed_input import decompress_input
from mulligan.wire.event_types import EVENT_TYPES
from mulligan.workflows.conversation.continue_as_new import InvalidStateError, decode_state
from tests.fuzz.inputs import (
    KEYWORDS,
    TOKENS,
    WORDS,
    DeepSchema,
    deep_schemas,
    documents,
    json_values,
    repeated,
    schemas,
    texts,
)
from tests.fuzz.provider_streams import changed_streams, read_changed_stream
from tests.fuzz.script_values import run_hostile_script, scripts, shared_values, write_value
from tests.fuzz.yaml_documents import front_matters, yaml_texts
from tests.support.cut_off_calls import WrittenCall, check_each_cut, written_calls
from tests.support.openai_schemas import check_schema
from tests.support.thinking_answers import answers, check_calls


@dataclass(frozen=True)
class Target:
    """A parser, and inputs for it."""

    inputs: st.SearchStrategy[Any]
    run: Callable[[Any], None]


def read_arguments(text: str) -> None:
    with suppress(NotJson):
        parse_json(text)
    for reading in repair_json(text, {"a"}):
        json.dumps(reading.value, allow_nan=False)


def cut_call(call: WrittenCall) -> None:
    asyncio.run(check_each_cut(call))


def read_calls(text: str) -> None:
    rest, calls = find_calls(text, {"find", "a"})
    assert len(rest) <= len(text) + 2 * len(calls)
    for call in calls:
        # Arguments that are written in tags or as Python writes them are made an object; a control character becomes \u0001.
        assert len(call.arguments) <= 6 * len(text) + 20


def convert_schema(given: tuple[Any, Any]) -> None:
    schema, value = given
    if not isinstance(schema, dict):
        return
    strict(schema)
    with suppress(TypeError):
        Output.from_declaration(schema)
    try:
        shown, checked_by = _schemas(schema)
    except (TypeError, RecursionError):
        return
    check_schema(shown, "function 'x'", "tools", None, strict=False)
    with suppress(NoExample):
        json.dumps(example(shown))
    for each in filter(None, (shown, checked_by)):
        if is_cheap(each, value):
            schema_faults(schema_validator(each), value)


def walk_schema(given: tuple[Any, Any]) -> None:
    """Every reader of schemas: it ends, and what was nested too deeply was refused where the schema came in."""
    schema, value = given
    schema = schema.schema() if isinstance(schema, DeepSchema) else schema
    strict(schema)
    with suppress(NoExample):
        example(schema)
    convert(schema, value, json.loads)
    fields_of(schema, value)
    with suppress(TypeError):
        Output.from_declaration(schema)
    try:
        check_size(schema)
    except TypeError:
        return
    with suppress(TypeError):
        _schemas(schema)
    json.dumps(google_schema(schema))
    json.dumps(tidy_schema(schema))
    json.dumps(_without_patterns(schema))
    property_names(schema)
    is_cheap(schema, value)


def read_run_input(data: bytes) -> None:
    with suppress(InvalidRunInputError):
        parse_run_input(decompress_input(data))


def read_client_messages(request: tuple[bool, Sequence[tuple[Any, int]]]) -> None:
    """The messages of a request, each several times, in either of OpenAI's forms."""
    is_chat, messages = request
    items = [message for message, count in messages for _ in range(count)]
    with suppress(Problem):
        (chat_messages if is_chat else input_messages)(items)
    if not is_chat:
        for of_any_run in (True, False):
            with suppress(Problem):
                replies(items, of_any_run=of_any_run)
        split_new_items(items)


def read_body(data: bytes) -> None:
    with suppress(Problem):
        read_json(data)


class _Client:
    """A client of which only handles are made: nothing is sent."""

    def get_workflow_handle(self, workflow_id: str) -> None:
        return None


def read_events(given: tuple[str, Any]) -> None:
    token, stored = given
    client: Any = _Client()
    with suppress(EventTokenError):
        EventFollower(client, "w", token, 1.0)
    with suppress(ValidationError):
        EventFollower(client, "w", "", 1.0)._parse(stored)


def read_state(data: bytes) -> None:
    with suppress(InvalidStateError):
        decode_state(data)


CODEC = EncryptionCodec({"new": b"k" * 32, "old": b"o" * 32})


def decode_payload(given: tuple[dict[str, bytes], bytes, int, str]) -> None:
    metadata, data, changed, keys = given
    with suppress(DeclarationError):
        parse_keys(keys)
    payload = Payload(metadata=metadata, data=data)
    with suppress(ValueError, DecodeError):
        asyncio.run(CODEC.decode([payload]))
    [encoded] = asyncio.run(CODEC.encode([payload]))
    assert asyncio.run(CODEC.decode([encoded])) == [payload]
    position = changed % len(encoded.data)
    encoded.data = encoded.data[:position] + bytes([encoded.data[position] ^ 1]) + encoded.data[position + 1 :]
    try:
        asyncio.run(CODEC.decode([encoded]))
    except ValueError:
        return
    raise AssertionError("a changed payload was decrypted")


def read_answer(given: tuple[bool, str, list[bytes]]) -> None:
    is_chat, content_type, chunks = given
    assembler, reply = (ChatAssembler, openai_chat._reply) if is_chat else (ResponsesAssembler, openai_responses._reply)

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def read() -> None:
        response = httpx2.Response(200, headers={"content-type": content_type}, content=stream())
        read = reply(await read_stream(response, assembler(lambda text: None)))
        json.dumps(read.provider_data).encode()
        "".join((read.text, read.model, *(call.id + call.name + call.arguments for call in read.calls))).encode()

    with suppress(Unavailable, ModelRequestError):
        asyncio.run(read())


def read_mcp_result(given: tuple[list[bytes], Any]) -> None:
    chunks, result = given
    decoder = LineDecoder()
    with suppress(UnicodeError):
        lines = "".join([*(decoder.decode(chunk) for chunk in chunks), decoder.decode(b"", final=True)])
        assert len(lines) <= sum(map(len, chunks)) + 200 * (1 + sum(chunk.count(b"\n") for chunk in chunks))
    with suppress(ValidationError):
        parsed = CallToolResult.model_validate(result)
        result_text(parsed)
        result_parts(parsed)


def _sse(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[bytes]]:
    event = parts.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n")
    noise = st.sampled_from(
        [b"data: [DONE]\n\n", b": ping\n\n", b"event: x\n", b"data:", b"\r\n\r\n", b"\xff", b"data: {\n\n"]
    )
    chunks = st.lists(event | noise, max_size=8) | st.builds(
        lambda chunk, count: [chunk] * count, event | noise, st.integers(2, 5_000)
    )
    return st.builds(lambda all_, size: cut(b"".join(all_), size), chunks, st.sampled_from([1, 7, 100, 65_536]))  # fmt: skip


def cut(data: bytes, size: int) -> list[bytes]:
    size = max(size, len(data) // 5_000)
    return [data[start : start + size] for start in range(0, len(data), size)]


_CHAT = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "index", "id", "function", "name", "arguments", "usage", "error", "code", "finish_reason", "refusal", "reasoning_content", "prompt_tokens"]
)  # fmt: skip
_RESPONSES = st.sampled_from(
    ["type", "response", "output", "item", "output_index", "content", "delta", "text", "status", "error", "code", "usage", "input_tokens", "name", "arguments", "call_id", "encrypted_content", "summary", "id"]
)  # fmt: skip
_TYPES = st.sampled_from(
    ["response.completed", "response.failed", "response.output_item.done", "response.output_text.delta", "error", "message", "function_call", "reasoning"]
)  # fmt: skip


def _with(strategy: st.SearchStrategy[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with some of these fields, and other values."""
    return st.fixed_dictionaries({}, optional=fields) | strategy


_CHAT_EVENT = _with(
    json_values(_CHAT),
    choices=st.lists(
        st.fixed_dictionaries({}, optional={"delta": json_values(_CHAT, 8), "message": json_values(_CHAT, 8)}) | json_values(_CHAT, 4),
        max_size=2,
    ),
    usage=json_values(_CHAT, 4),
)  # fmt: skip
_RESPONSES_EVENT = _with(
    json_values(_RESPONSES),
    type=_TYPES | WORDS,
    output=st.lists(_with(json_values(_RESPONSES, 5), type=_TYPES, content=json_values(_RESPONSES, 5), arguments=WORDS), max_size=3),
    response=json_values(_RESPONSES, 10),
    item=json_values(_RESPONSES, 5),
    status=st.sampled_from(["completed", "incomplete", "failed"]) | json_values(max_leaves=3),
)  # fmt: skip
_INPUT_NAMES = st.sampled_from(
    ["agent", "prompt", "messages", "role", "text", "tool_calls", "id", "name", "arguments", "call_id", "error", "kind", "message", "metadata", "max_steps", "maxSteps", "traceparent", "model", "provider_data", "tenant", "max_cost"]
)  # fmt: skip
_CONTENT_NAMES = st.sampled_from(
    ["content", "type", "text", "data", "mimeType", "uri", "resource", "blob", "isError", "structuredContent", "name"]
)
_BLOCK = _with(
    json_values(_CONTENT_NAMES, 4),
    type=st.sampled_from(["text", "image", "audio", "resource", "resource_link"]),
    text=WORDS | repeated(WORDS, 100_000),
    data=WORDS,
    mimeType=WORDS,
    uri=WORDS,
    name=WORDS,
    resource=json_values(_CONTENT_NAMES, 4),
)
_EVENT = st.builds(
    lambda fields, kind, offset: {**fields, "type": kind, "offset": offset},
    st.dictionaries(
        st.sampled_from(["at", "step", "call_id", "name", "text", "kind", "status", "usage", "error", "agent"]),
        json_values(max_leaves=4),
    ),
    st.sampled_from(sorted(EVENT_TYPES)) | WORDS,
    st.integers(),
)

_CLIENT_MESSAGE = json_values(st.sampled_from(["role", "content", "type", "id"]), 4) | st.sampled_from(
    [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}] * 3},
        {"role": "tool", "tool_call_id": "b", "content": "x"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "x"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True},
    ]
)


def read_agent_file(data: bytes) -> None:
    """An agent's file, of which an agent is made, as a worker reads those of its folder."""
    with suppress(FileFault):
        fault = None
        try:
            file = parse_agent_file("support", data)
        except FileFault as wrong:
            fault = wrong
        else:
            assert len(file.places) <= MOST_VALUES
            assert all(len(path) <= MOST_DEPTH + 1 for path in file.places)
            build_agent(file, NamedParts(), "agents/support.md")
        if fault is not None:
            assert 1 <= fault.line <= len(data) + 2
            assert len(fault.text) < 2_000
            fault.text.encode()


def read_skill(data: bytes) -> None:
    """A skill, which an agent is declared with, and which a run is told of."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "s").mkdir()
        (Path(folder) / "s/SKILL.md").write_bytes(data)
        skills = Skills(folder)
        with suppress(DeclarationError):
            Agent(name="clerk", model="openai:m", features=[skills])
            skills.needs([]).instructions().encode()
            json.dumps(skills.facts(["openai:m"])).encode()


def read_labels(text: str) -> None:
    """A file of labels. Its bytes are at most as many as a worker reads."""
    with suppress(FileFault):
        parse_labels(text.encode("utf-8", "replace")[:MOST_LABELS_BYTES].decode(errors="replace"))


TARGETS: dict[str, Target] = {
    "JSON body": Target(
        documents() | repeated(TOKENS, 1_000_000).map(lambda text: text.encode("utf-8", "replace")), read_body
    ),
    "client messages": Target(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(_CLIENT_MESSAGE, st.sampled_from([1, 2, 4_000, 6_000])), min_size=1, max_size=3),
        ),
        read_client_messages,
    ),
    "JSON repair": Target(texts(ARGUMENTS_BYTES), read_arguments),
    "cut-off calls": Target(written_calls(), cut_call),
    "calls in text": Target(texts(TEXT_CHARS), read_calls),
    "thoughts in text": Target(answers(), check_calls),
    "schema conversion": Target(
        st.tuples(schemas() | json_values(KEYWORDS), json_values(max_leaves=8)), convert_schema
    ),
    "schema walkers": Target(
        st.tuples(
            deep_schemas() | schemas().filter(lambda schema: isinstance(schema, dict)), json_values(max_leaves=8)
        ),
        walk_schema,
    ),
    "run input": Target(documents(_INPUT_NAMES), read_run_input),
    "agent files": Target(front_matters(200_000), read_agent_file),
    "skills": Target(front_matters(20_000), read_skill),
    "labels": Target(yaml_texts(200_000), read_labels),
    "events": Target(st.tuples(WORDS | st.from_regex(r"[0-9.]{0,40}"), _EVENT), read_events),
    "carried state": Target(documents(st.sampled_from(["conversation", "agent", "turn"])), read_state),
    "codec": Target(
        st.tuples(
            st.dictionaries(
                st.sampled_from(["encoding", "encryption-key-id", "x"]),
                st.sampled_from([b"binary/encrypted", b"json/plain", b"new", b"old", b"\xff"]) | st.binary(max_size=5),
            ),
            st.binary(max_size=100) | repeated(TOKENS, 100_000).map(lambda text: text.encode("utf-8", "replace")),
            st.integers(0, 10_000),
            st.lists(st.sampled_from(["a", ":", ",", "A" * 43 + "=", "=", " ", "é"]), max_size=8).map("".join) | WORDS,
        ),
        decode_payload,
    ),
    "SSE": Target(
        st.builds(
            lambda is_chat, kind, chat, responses: (is_chat, kind, chat if is_chat else responses),
            st.booleans(),
            st.sampled_from(["text/event-stream", "application/json", ""]),
            _sse(_CHAT_EVENT),
            _sse(_RESPONSES_EVENT),
        ),
        read_answer,
    ),
    "values of scripts": Target(shared_values(), write_value),
    "scripts": Target(scripts(), run_hostile_script),
    "changed streams": Target(changed_streams(), read_changed_stream),
    "MCP results": Target(
        st.tuples(
            st.lists(documents().filter(lambda data: len(data) < 1_000_000) | st.just(b"\n"), max_size=4),
            _with(json_values(_CONTENT_NAMES), content=st.lists(_BLOCK, max_size=4), structuredContent=json_values()),
        ),
        read_mcp_result,
    ),
}
