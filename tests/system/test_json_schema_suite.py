"""JSON-Schema-Test-Suite 2020-12: arguments and outputs are valid by our validation exactly where the suite says so."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from mcp.types import Tool as ListedTool

from mulligan import Agent, McpServer
from mulligan.activities.mcp.servers import MAX_TOOLS, McpServers
from mulligan.activities.mcp.tool_list import ToolList
from mulligan.output import Output
from mulligan.schema.json_schema import NotOfSchema, schema_faults, schema_validator
from mulligan.tool import Tool
from tests.support.expected_failures import check_failures
from tests.support.openai_schemas import check_schema
from tests.support.published_packages import JSONSCHEMA, download

SUITE = "json_schema_suite"


@dataclass(frozen=True)
class Case:
    """One schema of the suite, with instances: (description, value, whether it is valid)."""

    name: str
    schema: Any
    instances: list[tuple[str, Any, bool]]


@pytest.fixture(scope="module")
async def cases() -> list[Case]:
    return list(read_cases(str(await download(JSONSCHEMA))))


def read_cases(archive: str) -> Iterator[Case]:
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            folder, _, file = member.name.partition("/json/tests/draft2020-12/")
            if not file.endswith(".json") or "/" in file or not folder:
                continue
            content = tar.extractfile(member)
            assert content is not None
            for group in json.load(content):
                instances = [(test["description"], test["data"], test["valid"]) for test in group["tests"]]
                yield Case(f"{file.removesuffix('.json')}: {group['description']}", group["schema"], instances)


def as_object(schema: Any) -> dict[str, Any]:
    """A schema that is `true` or `false`, as an object."""
    if isinstance(schema, dict):
        return schema
    return {} if schema else {"not": {}}


async def tools_of(servers: McpServers, schemas: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[Tool]:
    """The tools of a server with these schemas, as a run gets them."""
    found: list[Tool] = []
    for start in range(0, len(schemas), MAX_TOOLS):
        part = schemas[start : start + MAX_TOOLS]

        class Session:
            listed: ClassVar = ToolList(
                [ListedTool(name=f"t{n}", input_schema=schema) for n, schema in enumerate(part)], {}
            )

            def __init__(self, server: McpServer) -> None:
                pass

            async def tools(self) -> ToolList:
                return self.listed

        with monkeypatch.context() as patch:
            patch.setattr(servers, "_session", Session)
            agent = Agent(name="a", model="openai:x", mcp=[McpServer("s", command=["run"])])
            offered = await servers.offer_tools(agent)
        assert [tool.name for tool in offered.tools] == [f"s__t{n}" for n in range(len(part))]
        found += offered.tools
    return found


def is_valid(validator: Any, value: Any) -> bool:
    try:
        validator.validate(value)
    except NotOfSchema as error:
        not_checked = [says for _, says in error.faults if "could not be checked" in says]
        assert not_checked == []
        return False
    return True


def compare(cases: list[Case], tools: list[Tool], failed: set[str], passed: set[str]) -> None:
    """Note of each instance whether the arguments of its tool are valid as the suite says."""
    for case, tool in zip(cases, tools, strict=True):
        for description, value, valid in case.instances:
            found = is_valid(tool.arguments, value)
            (passed if found == valid else failed).add(f"{case.name}: {description}")


@pytest.mark.parametrize("part", ["arguments", "a field of the arguments"])
async def test_arguments_are_valid_exactly_where_the_suite_says_so(
    part: str, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As schemas of an MCP server's tool: each object as the arguments, and each value as a field of them."""
    if part == "arguments":
        chosen = [
            Case(case.name, as_object(case.schema), objects)
            for case in cases
            if (objects := [each for each in case.instances if isinstance(each[1], dict)])
            and as_object(case.schema).get("type", "object") == "object"
        ]
    else:
        chosen = [
            Case(case.name, in_field(case.schema), [(name, {"value": value}, ok) for name, value, ok in case.instances])
            for case in cases
        ]
    servers = McpServers()
    failed: set[str] = set()
    passed: set[str] = set()
    async with servers.running():
        tools = await tools_of(servers, [case.schema for case in chosen], monkeypatch)
        # In a thread, as values of some schemas are checked in a process, for which the event loop waits.
        await asyncio.to_thread(compare, chosen, tools, failed, passed)
    print(f"{part}: {len(passed)} agree, {len(failed)} do not")
    check_failures(SUITE, part, failed, passed)


def in_field(schema: Any) -> dict[str, Any]:
    """A schema of an object with one field; references within the field's schema lead to its own parts."""
    inner = {"$id": "https://example.com/case", **schema} if isinstance(schema, dict) else schema
    return {"type": "object", "properties": {"value": inner}, "required": ["value"]}


async def test_what_the_server_accepts_is_accepted_by_the_schema_that_the_model_gets(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a provider takes that schema."""
    servers = McpServers()
    failed: set[str] = set()
    passed: set[str] = set()
    chosen = [case for case in cases if as_object(case.schema).get("type", "object") == "object"]
    async with servers.running():
        tools = await tools_of(servers, [as_object(case.schema) for case in chosen], monkeypatch)
    for case, tool in zip(chosen, tools, strict=True):
        check_schema(tool.schema, "function 'x'", "tools", None, strict=False)
        validator = schema_validator(tool.schema)
        for description, value, valid in case.instances:
            if valid and isinstance(value, dict):
                name = f"{case.name}: {description}"
                (failed if schema_faults(validator, value) else passed).add(name)
    print(f"shown: {len(passed)} accepted, {len(failed)} not")
    check_failures(SUITE, "the schema that the model gets", failed, passed)


async def test_outputs_are_valid_exactly_where_the_suite_says_so(cases: list[Case]) -> None:
    failed: set[str] = set()
    passed: set[str] = set()
    for case in cases:
        try:
            output = Output.from_declaration(as_object(case.schema)).whole
        except TypeError:
            failed |= {f"{case.name}: {description}" for description, _, _ in case.instances}
            continue
        for description, value, valid in case.instances:
            found = is_valid(output, {"value": value} if output.is_wrapped else value)
            (passed if found == valid else failed).add(f"{case.name}: {description}")
    print(f"output: {len(passed)} agree, {len(failed)} do not")
    check_failures(SUITE, "output", failed, passed)
