"""The parts of MCP that need no server: declarations, names, and schemas for providers."""

from __future__ import annotations

import asyncio
import codecs
import json
import random
import re
import sys
import time
import tracemalloc
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR
from mcp.types import Tool as ListedTool

from mulligan import Agent, DeclarationError, McpServer, ToolCall, tool
from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.prepare_call import ValidArguments, prepare
from mulligan.activities.mcp.http_client import HttpOutcome
from mulligan.activities.mcp.response_limit import IS_TOO_LARGE, LINES, MAX_RESPONSE_BYTES, TOO_LARGE
from mulligan.activities.mcp.servers import McpServers, _schemas
from mulligan.activities.mcp.session import _reason
from mulligan.activities.mcp.tool_list import ToolList
from mulligan.activities.registry import Registry
from mulligan.activities.run_data.definitions import define
from mulligan.activities.tool_running.find_tool import ToolFinder
from mulligan.errors import InvalidToolInputError
from mulligan.mcp import expand_variables, qualified_name, server_name_of
from mulligan.schema.json_schema import schema_faults, schema_validator
from mulligan.schema.schema_arguments import SchemaArguments
from mulligan.schema.schema_cost import check_size, is_cheap
from mulligan.schema.tool_schema import provider_schema
from mulligan.tool import Tool, is_legal_name
from mulligan.wire.agent_facts import Definition, ToolDefinition
from tests.support.openai_schemas import check_schema

PAGE = (Path(__file__).parents[2] / "docs/mcp.md").read_text()
RUN = ["server"]
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "give it a command or a url, and not both"),
    "both": ({"command": RUN, "url": "http://a"}, "give it a command or a url, and not both"),
    "a shell's line": ({"command": "npx server"}, "command must be a list"),
    "no program": ({"command": []}, "command must be a list"),
    "no URL": ({"url": "ftp://a"}, "url must begin with http:// or https://"),
    "headers for a program": ({"command": RUN, "headers": {"a": "b"}}, "headers are for a server with a url"),
    "variables for a URL": ({"url": "http://a", "pass_env": ["A"]}, "are for a server with a command"),
    "a name as a list": ({"command": RUN, "include": "read"}, "include must be a list of names, but is 'read'"),
    "one name for approval": (
        {"command": RUN, "needs_approval": "write"},
        "needs_approval must be True, False, a function, or a list of names, but is 'write'",
    ),
    "a number as a variable": ({"command": RUN, "env": {"A": 1}}, "env must map names to texts"),
    "a number as a header": ({"url": "http://a", "headers": {"A": 1}}, "headers must map names to texts or functions"),
    "no time": ({"command": RUN, "timeout": 0}, "timeout must be more than 0 seconds"),
    "too much time to start": ({"command": RUN, "start_timeout": 60}, "at most 45 s, but is 60"),
    "no time for a person": ({"command": RUN, "approval_timeout": timedelta(0)}, "approval_timeout must be more"),
    "no attempt": ({"command": RUN, "attempts": 0}, "attempts must be 1 or more"),
    "no result": ({"command": RUN, "max_result_chars": 0}, "max_result_chars must be 1 or more"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_an_invalid_server_declaration_is_refused_with_a_sentence(case: str) -> None:
    given, says = FAULTS[case]
    with pytest.raises(DeclarationError) as error:
        McpServer("files", **given)
    assert str(error.value).startswith("MCP server 'files': ")
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["", "a b", "a__b", "a_", "x" * 33, "é"])
def test_a_server_name_that_cannot_begin_a_tool_name_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="name must be 1 to 32 letters"):
        McpServer(name, command=RUN)


def test_server_names_are_unique_and_do_not_clash_with_tools() -> None:
    """A tool of the agent may not have the prefix of a server."""

    @tool(name="files__read")
    def read() -> str:
        return ""

    files = McpServer("files", command=RUN)
    with pytest.raises(DeclarationError, match="two MCP servers are named 'files'"):
        Agent(name="a", model="openai:x", mcp=[files, McpServer("files", url="http://a")])
    with pytest.raises(DeclarationError, match="'files__read' is named as a tool of its MCP server 'files' would be"):
        Agent(name="a", model="openai:x", tools=[read], mcp=[files])
    with pytest.raises(DeclarationError, match=r"mcp\[0\] is 'npx server'; give a McpServer"):
        Agent(name="a", model="openai:x", mcp=["npx server"])  # type: ignore[list-item]
    assert Agent(name="a", model="openai:x", tools=[read], mcp=[McpServer("file", command=RUN)]).mcp_server("file")


def test_secrets_of_a_server_are_in_no_repr_address_or_error() -> None:
    """Of declarations and failed requests."""
    program = McpServer("a", command=["run", "--key", "sesame"], env={"KEY": "sesame"})
    web = McpServer("b", url="https://sesame:sesame@host/mcp?key=sesame", headers={"Authorization": "sesame"})
    said = f"{program!r} {web!r} {program.address} {web.address} {HttpOutcome(error=ValueError('sesame'))}"
    assert "sesame" not in said
    assert (program.address, web.address) == ("run", "https://host/mcp")


def test_references_to_environment_variables_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_A", "a")
    monkeypatch.delenv("TOKEN_B", raising=False)
    assert expand_variables("Bearer ${TOKEN_A}, $TOKEN_A") == "Bearer a, $TOKEN_A"
    with pytest.raises(Exception, match="the worker's environment has no TOKEN_B"):
        expand_variables("${TOKEN_B}")
    server = McpServer("a", command=RUN, env={"X": "${TOKEN_A}"}, pass_env=["TOKEN_A", "TOKEN_B"])
    assert server.environment() == {"X": "a", "TOKEN_A": "a"}


def test_include_and_exclude_patterns_select_the_offered_tools() -> None:
    server = McpServer("a", command=RUN, include=["read_*", "write"], exclude=["*_all"], needs_approval=["w*"])
    assert [name for name in ("read_a", "read_all", "write", "writes", "Read_a") if server.offers(name)] == [
        "read_a",
        "write",
    ]
    assert [server.options_of(name)["needs_approval"] for name in ("write", "read_a")] == [True, False]


def test_every_tool_name_of_a_server_becomes_legal_and_unique() -> None:
    """Whatever characters the server uses."""
    random.seed(7)
    letters = "abcABC019_-./: é€"
    names = {"".join(random.choices(letters, k=random.randint(1, 90))) for _ in range(3_000)}
    shown = {qualified_name("server", name) for name in names}
    assert len(shown) == len(names)
    assert all(is_legal_name(name) and server_name_of(name) == "server" for name in shown)
    assert qualified_name("server", "read_file") == "server__read_file"


def test_an_agent_with_servers_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised at the declaration and names the command. An agent without servers does not need the extra."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    server = McpServer("files", command=RUN)
    with pytest.raises(DeclarationError, match=r"agent 'a': mcp=\[…\] needs the extra 'mcp'.*uv add 'mulligan\[mcp\]'"):
        Agent(name="a", model="openai:x", mcp=[server])
    Agent(name="a", model="openai:x")


FIELD = {"type": "string"}
SCHEMAS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "nothing": ({"type": "object"}, [{}, {"a": 1}], [[], "a"]),
    "fields": ({"type": "object", "properties": {"a": FIELD}, "required": ["a"]}, [{"a": "b"}], [{}, {"a": 1}]),
    "one of two at the root": (
        {
            "type": "object",
            "oneOf": [
                {"properties": {"id": FIELD}, "required": ["id"]},
                {"properties": {"name": FIELD}, "required": ["name"], "additionalProperties": False},
            ],
            "additionalProperties": False,
        },
        [{"id": "a"}, {"name": "a"}],
        [{"id": 1}],
    ),
    "a reference at the root": (
        {"type": "object", "$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": FIELD}}}},
        [{"a": "b"}],
        [{"a": 1}],
    ),
    "a reference to itself": (
        {"type": "object", "properties": {"next": {"$ref": "#"}, "a": FIELD}},
        [{"next": {"next": {"a": "b"}}}],
        [{"next": {"a": 1}}],
    ),
    "a reference to somewhere": (
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}, "b": {"$ref": "#/no"}}},
        [{"a": 1, "b": []}],
        [],
    ),
    "JavaScript's patterns": (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^\\p{L}$"}}},
        [{"a": "b"}],
        [{"a": 1}],
    ),
    "a pattern of names": (
        {"type": "object", "patternProperties": {"^(?<n>a)$": FIELD, "^x": FIELD}},
        [{"a": 1, "x": "b"}],
        [{"x": 1}],
    ),
    "an array of anything": ({"type": "object", "properties": {"a": {"type": "array"}}}, [{"a": [1, "b"]}], [{"a": 1}]),
    "draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"type": "array", "items": [FIELD, {"type": "array"}]}},
            "definitions": {"A": FIELD},
        },
        [{"a": ["b", []]}],
        [{"a": [1]}],
    ),
    "a field that is called as a keyword": (
        {"type": "object", "properties": {"pattern": FIELD, "items": FIELD, "$ref": FIELD, "anyOf": FIELD}},
        [{"pattern": "(", "$ref": "x", "anyOf": "y"}],
        [{"pattern": 1}],
    ),
    "a field that may be anything": ({"type": "object", "properties": {"a": True, "b": {}}}, [{"a": 1, "b": []}], []),
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas_are_changed_to_what_every_provider_accepts(case: str) -> None:
    """Fields are kept; keywords that providers refuse, or that cannot be checked, are left out."""
    schema, fit, unfit = SCHEMAS[case]
    taken = provider_schema(schema)
    check_schema(taken, "function 'x'", "tools", None, strict=False)
    validator = schema_validator(taken)
    assert [value for value in fit if schema_faults(validator, value)] == []
    assert [value for value in unfit if not schema_faults(validator, value)] == []


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    with pytest.raises(TypeError, match="nested 504 levels deep; the limit is 150"):
        provider_schema({"type": "object", "properties": {"a": deep}})


def test_the_declarations_of_the_mcp_page_work_as_described() -> None:
    """docs/mcp.md."""
    declarations, *others = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    page: dict[str, Any] = {}
    exec(compile(declarations, "docs/mcp.md", "exec", dont_inherit=True), page)
    for code in others:
        exec(compile(code, "docs/mcp.md", "exec", dont_inherit=True), dict(page))
    files, github = page["clerk"].mcp
    assert [files.options_of(name)["needs_approval"] for name in ("write_file", "read_file")] == [True, False]
    assert not github.offers("delete_file")
    assert qualified_name("server", "files.delete/all") in PAGE


MESSAGE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%s"}}'


def decoded(text: bytes, chunk: int) -> str:
    decoder = codecs.getincrementaldecoder(LINES)()
    parts = [decoder.decode(text[at : at + chunk]) for at in range(0, len(text), chunk)]
    return "".join(parts) + decoder.decode(b"", True)


@pytest.mark.parametrize("chunk", [1, 3, 1_000])
def test_lines_within_the_limit_are_decoded_unchanged(chunk: int) -> None:
    text = "\n".join((MESSAGE % "ä", MESSAGE % "€" + "\r", " " + MESSAGE % "b", MESSAGE % "𝄞"))
    assert decoded(text.encode(), chunk) == text


@pytest.mark.parametrize("chunk", [1, 3, 65_536])
def test_lines_that_cannot_be_messages_are_left_out_and_logged_once(
    chunk: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK logs each of them, with a traceback: blank ones too."""
    noise = b"starting \x1b[2J" + b"x" * 1_000 + b"\n" + b"\n \r\n" * 1_000 + b"more\n[1]\n" * 1_000
    message = MESSAGE % "x" + "\n"
    assert decoded(noise + message.encode() + noise, chunk) == message
    first, last = caplog.messages
    assert "wrote a line that is not a message of the protocol: starting" in first
    assert len(first) < 700
    assert "4001 more lines" in last
    assert "of 15013 bytes" in last


@pytest.mark.parametrize("chunk", [7_919, 65_536, 100_000_000])
@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"text":"%s"}}', 7),
        (b'{"result":{"text":"%s"},"jsonrpc":"2.0","id":"a-1"}', "a-1"),
        (b'{"result": {"id": 1, "text": "%s", "b": {"id":2}}, "id": 8, "jsonrpc": "2.0"}\r', 8),
    ],
)
def test_a_response_that_is_too_long_becomes_an_error_of_its_request(line: bytes, request_id: Any, chunk: int) -> None:
    long, message = line % (b"x" * MAX_RESPONSE_BYTES), (MESSAGE % "x").encode()
    first, error, last = decoded(message + b"\n" + long + b"\n" + message, chunk).split("\n")
    assert first == last == message.decode()
    expected = {"code": -32000, "message": TOO_LARGE, "data": IS_TOO_LARGE}
    assert json.loads(error) == {"jsonrpc": "2.0", "id": request_id, "error": expected}


def test_a_long_message_without_a_request_is_left_out() -> None:
    message = MESSAGE % "x"
    assert (
        decoded(b'{"method":"log","params":"' + b"x" * MAX_RESPONSE_BYTES + b'"}\n' + message.encode(), 65_536)
        == message
    )


def test_a_line_that_does_not_end_takes_bounded_memory_and_ends_the_session() -> None:
    decoder = codecs.getincrementaldecoder(LINES)()
    chunk = b"x" * 1_000_000

    def read() -> None:
        for _ in range(1_000):
            decoder.decode(chunk)

    tracemalloc.start()
    try:
        with pytest.raises(UnicodeError, match="a line of more than"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_RESPONSE_BYTES
    finally:
        tracemalloc.stop()


def doubled(depth: int) -> dict[str, Any]:
    """A chain in which each definition refers to the next one twice."""
    links = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(depth)}
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {**links, f"d{depth}": {"type": "integer"}},
    }


def nested(depth: int) -> Any:
    return {"default": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (doubled(18), "more than 20,000 parts"),
        ({"type": "object", "description": "x" * 200_000}, "200,037 bytes; the limit is 200,000"),
        (nested(193), "nested 194 levels deep; the limit is 150"),
        ({"type": "object", "required": [{"a": n} for n in range(2_000)]}, "a list of 2,000 items"),
    ],
)
def test_an_excessive_schema_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        check_size(schema)


def test_an_ordinary_schema_is_small_enough_and_cheap() -> None:
    """Also where a field is named as a keyword, and where a reference refers to what contains it."""
    field = {"type": "string", "enum": ["a", "b"], "default": {"pattern": "("}}
    schema = {"type": "object", "properties": {f"f{n}": field for n in range(200)} | {"pattern": field}}
    check_size(schema)
    assert is_cheap(schema, {"f1": "a", "pattern": "b"})
    check_size({"type": "object", "properties": {"child": {"$ref": "#"}, "other": {"$ref": "#"}}})
    check_size(doubled(8))


@pytest.mark.parametrize(
    "part",
    [
        {"pattern": "^(a+)+$"},
        {"patternProperties": {"a": {}}},
        {"items": {"uniqueItems": True}},
        {"anyOf": [{"$ref": "#"}]},
        {"not": {"unevaluatedProperties": False}},
    ],
)
def test_a_schema_that_may_take_more_than_linear_time_is_not_cheap(part: dict[str, Any]) -> None:
    assert not is_cheap({"type": "object", "properties": {"properties": part}})


def test_a_cheap_schema_is_not_cheap_for_a_value_that_is_large() -> None:
    schema = {"type": "array", "items": {"enum": list(range(1_000))}}
    assert is_cheap(schema, list(range(100)))
    assert not is_cheap(schema, list(range(1_000)))


async def ticks(during: Awaitable[Any]) -> tuple[int, Any]:
    """How often the event loop did something else, at most every 10 ms; and the result."""
    number = 0

    async def tick() -> None:
        nonlocal number
        while True:
            await asyncio.sleep(0.01)
            number += 1

    ticking = asyncio.create_task(tick())
    result = await during
    ticking.cancel()
    return number, result


@pytest.mark.parametrize(
    ("part", "value"),
    [({"type": "string", "pattern": "^(a+)+$"}, "a" * 40 + "!"), (doubled(20)["properties"]["a"], "x")],
)
async def test_a_validation_that_takes_too_long_is_ended_and_does_not_hold_up_the_worker(
    part: dict[str, Any], value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.activities.mcp.servers.CHECK_SECONDS", 1.0)
    definition = ToolDefinition(
        name="files__find",
        description="",
        parameters={**doubled(20), "properties": {"a": part}},
    )
    servers = McpServers()
    async with servers.running():
        found = servers.tool(McpServer("files", command=RUN), "files__find", "find", definition)
        call = ToolCall(id="1", name="files__find", arguments=json.dumps({"a": value}))
        parsed, target = ParsedArguments.of(call.arguments), Target(found.name, found.arguments)
        number, outcome = await ticks(outcome_of(prepare(call, parsed, target)))
        assert isinstance(outcome, InvalidToolInputError)
        assert outcome.kind == "invalid_arguments"
        assert "could not be checked" in outcome.message
        assert number >= 10
        fast = ToolCall(id="2", name="files__find", arguments='{"a": 5}' if "pattern" not in part else '{"a": "aa"}')
        valid = await outcome_of(prepare(fast, ParsedArguments.of(fast.arguments), target))
    assert isinstance(valid, ValidArguments) or "$ref" in part


async def outcome_of(prepared: Awaitable[ValidArguments]) -> ValidArguments | Exception:
    try:
        return await prepared
    except InvalidToolInputError as error:
        return error


async def test_a_tool_with_an_excessive_schema_is_left_out_with_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        async def tools(self) -> ToolList:
            schemas = {"deep": nested(193), "doubled": doubled(18), "good": {"type": "object"}}
            tools = [ListedTool(name=name, input_schema=schema) for name, schema in schemas.items()]
            return ToolList(tools, left_out={"odd": "its inputSchema is not an object"})

    servers = McpServers()
    monkeypatch.setattr(servers, "_session", lambda server: Session())
    offered = await servers.offer_tools(Agent(name="a", model="openai:x", mcp=[McpServer("files", command=RUN)]))
    assert [definition.name for definition in offered.definitions] == ["files__good"]
    assert "the input of 'deep' is nested 194 levels deep; the limit is 150. It is left out." in caplog.text
    assert "the input of 'doubled' has a schema of more than 20,000 parts" in caplog.text
    assert "the input of 'odd' cannot be read: its inputSchema is not an object. It is left out." in caplog.text


async def test_tools_on_demand_do_not_count_against_what_a_request_may_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Session:
        async def tools(self) -> ToolList:
            text = "x" * 1_000
            schema = {"type": "object"}
            return ToolList([ListedTool(name=f"t{n}", description=text, input_schema=schema) for n in range(1_000)])

    servers = McpServers()
    monkeypatch.setattr(servers, "_session", lambda server: Session())
    mcp = [McpServer("web", command=RUN), McpServer("many", command=RUN, on_demand=True)]
    agent = Agent(name="a", model="openai:x", mcp=mcp)
    for stored, most in ((True, 1_000), (False, 645)):
        offered = await servers.offer_tools(agent, stored=stored)
        definition = define(agent, "", "openai:x", offered)
        assert len(definition.unseen) == most
        assert all(name.startswith("many__") for name in definition.unseen)
        # Twenty places of 128 are for tools that the model finds.
        assert len(definition.visible_tools) == 128 - 20 - 1 + 1
    assert "find_tools" in [tool.name for tool in definition.visible_tools]
    assert "355 tools of MCP server 'many' are left out" in caplog.text


async def tool_with(schema: dict[str, Any], servers: McpServers, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """The only tool of a server, as a later worker of the run finds it: from the pinned definition."""

    class Session:
        async def tools(self) -> ToolList:
            return ToolList([ListedTool(name="find", input_schema=schema)])

    server = McpServer("files", command=RUN)
    monkeypatch.setattr(servers, "_session", lambda server: Session())
    agent = Agent(name="a", model="openai:x", mcp=[server])
    offered = await servers.offer_tools(agent)
    definition = Definition.model_validate_json(define(agent, "", "openai:x", offered).model_dump_json())
    found = ToolFinder(Registry([agent]), servers).of_run(agent, definition).find("files__find")
    assert found is not None
    return found


ADDRESS = {
    "type": "object",
    "properties": {"country": FIELD},
    "required": ["country"],
    "if": {"properties": {"country": {"const": "US"}}},
    "then": {"properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["zip"]},
    "else": {"properties": {"postcode": FIELD}},
    "unevaluatedProperties": False,
}
TREE = {
    "type": "object",
    "$defs": {
        "node": {
            "$dynamicAnchor": "node",
            "properties": {"name": FIELD, "below": {"type": "array", "items": {"$dynamicRef": "#node"}}},
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "fit", "unfit", "shown"),
    [
        (
            ADDRESS,
            [{"country": "US", "zip": "12345"}, {"country": "FR", "postcode": "x"}],
            [{"country": "US"}, {"country": "US", "zip": "x"}, {"country": "FR", "zip": "12345"}, {"country": "FR", "x": 1}],
            {"country", "zip", "postcode"},
        ),
        (TREE, [{"name": "a", "below": [{"name": "b", "below": []}]}], [{"below": [{"name": 1}]}], {"name", "below"}),
        (
            {"$ref": "#", "type": "object", "properties": {"a": FIELD, "b": {"$ref": "#"}}},
            [{"b": {"a": "x"}}],
            [{"b": {"a": 1}}],
            {"a", "b"},
        ),
        (
            {"type": "object", "allOf": [{"$ref": "#/$defs/A"}, {"required": ["b"]}], "$defs": {"A": {"properties": {"b": FIELD}}}},
            [{"b": "x"}],
            [{}, {"b": 1}],
            {"b"},
        ),
    ],
    ids=["conditional", "dynamic reference", "reference to the root at the root", "reference in allOf"],
)  # fmt: skip
async def test_arguments_are_validated_by_the_servers_own_schema_and_the_model_is_shown_all_fields(
    schema: dict[str, Any], fit: list[Any], unfit: list[Any], shown: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = McpServers()
    async with servers.running():
        found = await tool_with(schema, servers, monkeypatch)
        check_schema(found.schema, "function 'x'", "tools", None, strict=False)
        assert found.schema["properties"].keys() == shown
        validator = schema_validator(found.schema)
        assert [value for value in fit if schema_faults(validator, value)] == []
        assert [value for value in fit if await refused(found, value)] == []
        assert [value for value in unfit if not await refused(found, value)] == []


async def refused(found: Tool, value: Any) -> bool:
    call = ToolCall(id="1", name=found.name, arguments=json.dumps(value))
    outcome = await outcome_of(prepare(call, ParsedArguments.of(call.arguments), Target(found.name, found.arguments)))
    assert "could not be checked" not in str(outcome)
    return isinstance(outcome, Exception)


@pytest.mark.parametrize(
    "lenient",
    [
        {"not": {"properties": {"a": {"type": "string", "pattern": "^\\p{Lu}"}}}},
        {"if": {"properties": {"a": {"$ref": "https://example.com/x"}}}, "then": {"required": ["b"]}},
        {"patternProperties": {"^\\p{L}$": {}}, "additionalProperties": False},
        {"properties": {"b": {}}, "allOf": [{"$ref": "https://example.com/x"}], "unevaluatedProperties": False},
    ],
)
async def test_what_cannot_be_checked_here_is_left_to_the_server(
    lenient: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where leaving it out would make the rest of the schema accept less."""
    servers = McpServers()
    async with servers.running():
        found = await tool_with({"type": "object", **lenient}, servers, monkeypatch)
        assert not await refused(found, {"a": "x"})


async def test_a_tool_whose_schema_says_all_is_pinned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own schema is in history only where the model is shown another one."""
    servers = McpServers()
    async with servers.running():
        found = await tool_with({"type": "object", "properties": {"a": FIELD}}, servers, monkeypatch)
        own = await tool_with(ADDRESS, servers, monkeypatch)
    assert isinstance(found.arguments, SchemaArguments)
    assert found.arguments.validator.schema == found.schema
    assert isinstance(own.arguments, SchemaArguments)
    assert own.arguments.validator.schema == ADDRESS


def test_a_large_schema_is_converted_in_little_time() -> None:
    """It happens on the worker's event loop: 200 KB of references, alternatives and conditions."""
    branch = {"if": {"properties": {"a": {"const": 1}}}, "then": {"$ref": "#/$defs/b"}, "else": {"$ref": "#/$defs/c"}}
    schema = {
        "type": "object",
        "$defs": {"b": {"properties": {"b": FIELD}}, "c": {"$anchor": "x", "properties": {"b": {"type": "integer"}}}},
        "anyOf": [{"properties": {f"p{n}": {**branch, "const": n}}} for n in range(500)],
        "unevaluatedProperties": False,
    }
    check_size(schema)
    started = time.process_time()
    _schemas(schema)
    assert time.process_time() - started < 3


def test_a_server_that_ends_while_it_is_started_is_known_by_the_code_of_the_error() -> None:
    """Whatever the SDK's message is, and however deep in groups of exceptions the error is."""
    closed = ExceptionGroup("a", [ExceptionGroup("b", [MCPError(CONNECTION_CLOSED, "another text")])])
    assert _reason(closed) == "it ended at once"
    assert _reason(MCPError(INTERNAL_ERROR, "Connection closed")) == "Connection closed"
