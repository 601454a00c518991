"""What the OpenAPI document has of each path: a body, answers, problems and security, and defaults that its schemas accept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mulligan import Agent, ProviderTool, tool
from mulligan.activities.list_agents import agent_json
from mulligan.run_input import NOT_WRITTEN
from mulligan.serve.api_answers import EarlierRun, ServedAgent, ServedTool
from mulligan.serve.create_app import create_app
from mulligan.workflows.conversation.records import EarlierPart

PLACE = EarlierPart(messages=1, steps=1, run_id="r", workflow_id="w")
WITHOUT_BODY = {"POST /api/runs/{id}/cancel"}
WITHOUT_TOKEN = {"POST /api/callbacks/{token}", "POST /api/webhooks/openai"}
STREAMED = {"POST /ag-ui/{agent}", "POST /ai-sdk/{agent}", "GET /ai-sdk/{agent}/{chat}/stream"}


@cache
def document() -> dict[str, Any]:
    return create_app(tokens="ada:token-of-ada").openapi()


def operations() -> dict[str, dict[str, Any]]:
    """By method and path."""
    found = {
        f"{method.upper()} {path}": operation
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }
    assert len(found) > 20
    return found


def test_a_path_has_its_body_its_answers_and_its_errors(subtests: pytest.Subtests) -> None:
    for name, operation in operations().items():
        with subtests.test(name):
            check_body_and_answers(name, operation)


def check_body_and_answers(name: str, operation: dict[str, Any]) -> None:
    assert ("requestBody" in operation) == (name.startswith("POST") and name not in WITHOUT_BODY)
    answers = operation["responses"]
    contents = [answer["content"] for status, answer in answers.items() if status in ("200", "201")]
    assert contents
    if name in STREAMED:
        assert contents == [{"text/event-stream": {}}]
    else:
        assert all(content["application/json"]["schema"] for content in contents)
    problems = {status: answer["content"] for status, answer in answers.items() if status[0] in "45"}
    assert {"400", "403", "413", "415", "421", "422", "502", "503"} <= set(problems)
    assert ("404" in problems) == (name not in ("GET /api/runs", "GET /api/agents", "POST /api/webhooks/openai"))
    form = "application/problem+json" if name.split()[1].startswith("/api/") else "application/json"
    assert all(list(content) == [form] for content in problems.values())
    assert "HTTPValidationError" not in document()["components"]["schemas"]


def test_a_path_says_who_may_call(subtests: pytest.Subtests) -> None:
    user = {"$ref": "#/components/parameters/user"}
    for name, operation in operations().items():
        with subtests.test(name):
            assert (operation.get("security") == []) == (name in WITHOUT_TOKEN)
            assert ("401" in operation["responses"]) == (name not in WITHOUT_TOKEN)
            assert (user in operation.get("parameters", [])) == (name not in WITHOUT_TOKEN)


def test_security_is_what_the_server_asks_for() -> None:
    assert document()["security"] == [{"bearer": []}]
    assert create_app(tokens="").openapi()["security"] == [{"bearer": []}, {}]
    own = create_app(tokens="", authenticate=lambda _: None).openapi()
    assert own["security"] == [{"bearer": []}, {}]
    for each in (document(), own):
        scheme = each["components"]["securitySchemes"]["bearer"]
        assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas(each)


def test_no_schema_refuses_its_own_default_or_example() -> None:
    components = {"components": document()["components"]}
    checked = 0
    for schema in schemas(document()):
        for value in [*([schema["default"]] if "default" in schema else []), *schema.get("examples", [])]:
            Draft202012Validator({**schema, **components}).validate(value)
            checked += 1
    assert checked > 50


def test_a_new_run_is_described_without_what_clients_may_not_set() -> None:
    body = operations()["POST /api/runs"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/NewRun"}
    fields = document()["components"]["schemas"]["NewRun"]["properties"]
    assert {"id", "agent", "prompt", "messages", "metadata", "max_cost"} <= set(fields)
    assert not NOT_WRITTEN.keys() & fields.keys()


def test_the_document_has_every_field_of_an_agent_and_of_an_earlier_run() -> None:
    """As `agent_json` and the queries send them."""

    @tool(once=True, needs_approval=True)
    def pay(euros: float) -> str:
        """Pay."""
        return f"{euros}"

    searching = ProviderTool("openai", {"type": "web_search"})
    agent = agent_json(Agent(name="a", model="openai:m", tools=[pay, searching], handoffs=["b"]))
    for given, model in ((agent, ServedAgent), (agent["tools"][0], ServedTool), (PLACE.place, EarlierRun)):
        assert given.keys() - {"source"} <= model.model_fields.keys()
