"""The tools of the Berkeley Function Calling Leaderboard: their schemas are accepted, and the correct calls are valid."""

from __future__ import annotations

import ast
import itertools
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mulligan.activities.answers.prepare_call import valid
from mulligan.activities.mcp.servers import _schemas
from mulligan.activities.models._strict_schema import strict
from mulligan.output import Output
from mulligan.schema.json_schema import NotOfSchema, schema_faults, schema_validator
from mulligan.schema.schema_arguments import SchemaArguments
from tests.support.cut_off_calls import WrittenCall, check_each_cut
from tests.support.expected_failures import check_failures
from tests.support.openai_schemas import check_schema
from tests.support.published_packages import BFCL, download

SUITE = "bfcl"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "double": "number", "long": "integer", "char": "string"}
"""The leaderboard writes types by Python's names; others of Java and JavaScript are texts to a model."""
EACH = int(os.environ.get("CUT_EACH", "12"))
"""Each so many-th correct call is cut off at each of its positions; `CUT_EACH=1`: all 3,000."""
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


@dataclass(frozen=True)
class Case:
    """A question's tools, by name, and its correct calls: (name of the tool, arguments)."""

    name: str
    tools: dict[str, dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]


def as_json_schema(schema: Any) -> Any:
    """A schema with JSON's names of types, as the leaderboard itself changes it for OpenAI."""
    if isinstance(schema, list):
        return [as_json_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    changed: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            changed[key] = {name: as_json_schema(inner) for name, inner in value.items()}
        elif key == "type" and isinstance(value, str):
            changed[key] = TYPES.get(value, value if value in JSON_TYPES else "string")
        elif key not in ("optional", "enum", "default"):
            changed[key] = as_json_schema(value)
        elif key != "optional":
            changed[key] = value
    return changed


@pytest.fixture(scope="module")
async def cases() -> list[Case]:
    return list(read_cases(str(await download(BFCL))))


def read_cases(wheel: str) -> Iterator[Case]:
    with zipfile.ZipFile(wheel) as data:
        names = {name.rpartition("/")[2]: name for name in data.namelist() if "unused" not in name}
        for file, path in sorted(names.items()):
            answers = f"bfcl_eval/data/possible_answer/{file}"
            if file.startswith("BFCL_v4_") and answers in data.namelist() and "multi_turn" not in file:
                questions = {each["id"]: each for each in lines(data, path.replace("possible_answer/", ""))}
                for answer in lines(data, answers):
                    question = questions[answer["id"]]
                    if "function" in question:
                        yield Case(
                            answer["id"], tools_of(question["function"]), list(gold_calls(answer["ground_truth"]))
                        )
        documents = {
            name: tools_of(lines(data, name)) for name in data.namelist() if "/multi_turn_func_doc/" in name and name.endswith("json")
        }  # fmt: skip
        tools: dict[str, dict[str, Any]] = {}
        for each in documents.values():
            tools |= each
        for file in ("base", "long_context", "miss_func", "miss_param"):
            for answer in lines(data, f"bfcl_eval/data/possible_answer/BFCL_v4_multi_turn_{file}.json"):
                calls = [python_call(text, tools) for turn in answer["ground_truth"] for text in turn]
                yield Case(answer["id"], {name: tools[name] for name, _ in calls}, calls)


def lines(data: zipfile.ZipFile, path: str) -> list[Any]:
    return [json.loads(line) for line in data.read(path).decode().splitlines() if line.strip()]


def tools_of(functions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: as_json_schema(each["parameters"]) for each in functions}


def gold_calls(ground_truth: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each call once: of the values that are correct for an argument, the first. "" says that it may be left out."""
    for call in ground_truth:
        for name, arguments in call.items():
            yield name, {key: first(values) for key, values in arguments.items() if first(values) != ""}


def first(values: Any) -> Any:
    """The first of the values that are correct, within objects too."""
    if not isinstance(values, list) or not values:
        return values
    value = next((each for each in values if each != ""), "")
    if isinstance(value, list):
        return [of_object(each) for each in value]
    return of_object(value)


def of_object(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: first(inner) for key, inner in value.items() if first(inner) != ""}


def python_call(text: str, tools: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """A call that is written in Python; positional arguments are those of the schema, in its order."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    names = list(tools[call.func.id]["properties"])
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    arguments |= {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
    return call.func.id, json.loads(json.dumps(arguments))


def test_each_schema_is_accepted_and_each_correct_call_is_valid(cases: list[Case]) -> None:
    """As the schemas of a server's tools."""
    failed: set[str] = set()
    passed: set[str] = set()
    schemas: dict[str, SchemaArguments] = {}
    for case in cases:
        for name, schema in case.tools.items():
            if (key := json.dumps(schema)) not in schemas:
                shown, checked_by = _schemas(schema)
                check_schema(shown, f"function {name!r}", "tools", None, strict=False)
                schemas[key] = SchemaArguments(shown, schema_validator(checked_by or shown))
        for number, (name, arguments) in enumerate(case.calls):
            try:
                schemas[json.dumps(case.tools[name])].validate(arguments)
                passed.add(f"{case.name}: call {number}")
            except NotOfSchema:
                failed.add(f"{case.name}: call {number}")
    print(f"{len(schemas)} schemas accepted, {len(passed)} calls valid, {len(failed)} not, of {len(cases)} questions")
    assert len(schemas) > 1_000
    check_failures(SUITE, "arguments", failed, passed)


async def test_each_correct_call_cut_off_anywhere_is_refused_or_complete(cases: list[Case]) -> None:
    """As calls of a server's tools: most of these have optional arguments, and many have lists of numbers."""
    calls: dict[str, WrittenCall] = {}
    accepts: dict[str, SchemaArguments] = {}
    for case in cases:
        for name, arguments in case.calls:
            if (key := json.dumps(case.tools[name])) not in accepts:
                offered, checked_by = _schemas(case.tools[name])
                accepts[key] = SchemaArguments(offered, schema_validator(checked_by or offered))
            text = json.dumps(arguments)
            if not isinstance(valid(accepts[key], arguments), Exception):
                calls[key + text] = WrittenCall(accepts[key], arguments, text, is_output=False, is_in_text=False)
    tried = [*calls.values()][::EACH]
    accepted = sum([await check_each_cut(call) for call in tried])
    positions = sum(len(call.text) - 1 for call in tried)
    print(f"{len(tried)} of {len(calls)} calls, {positions} positions: {accepted} lack nothing but their last brace")
    assert len(calls) > 3_000


def test_what_the_strict_form_lets_a_model_write_is_valid(cases: list[Case]) -> None:
    """As the schema of an output: correct calls, with defaults for what they leave out, fit the strict form."""
    failed: set[str] = set()
    passed: set[str] = set()
    forms: dict[str, tuple[Any, Any]] = {}
    for case in cases:
        for number, (name, arguments) in enumerate(case.calls):
            schema = case.tools[name]
            if (key := json.dumps(schema)) not in forms:
                form = strict(Output.from_declaration(schema).whole.schema)
                if form is not None:
                    check_schema(form, f"function {name!r}", "tools", None, strict=True)
                forms[key] = (schema_validator(schema), None if form is None else schema_validator(form))
            own, strictly = forms[key]
            if strictly is None or schema_faults(own, arguments):
                continue
            faults = schema_faults(strictly, completed(schema, arguments))
            (failed if faults else passed).add(f"{case.name}: call {number}")
    expressible = sum(strictly is not None for _, strictly in forms.values())
    print(f"{expressible} of {len(forms)} schemas have a strict form, {len(passed)} calls fit it, {len(failed)} do not")
    assert expressible > 100
    check_failures(SUITE, "strict form", failed, passed)


def completed(schema: dict[str, Any], value: Any) -> Any:
    """A value with the defaults of all properties that it leaves out, in objects and lists within too."""
    if isinstance(value, list):
        inner = schema.get("items", {})
        return [completed(inner, each) for each in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    missing = {name: inner.get("default") for name, inner in properties.items() if name not in value}
    return dict(
        itertools.chain(
            missing.items(), ((name, completed(properties.get(name, {}), each)) for name, each in value.items())
        )
    )
