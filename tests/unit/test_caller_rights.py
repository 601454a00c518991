"""Each route and each field of a request, for each kind of caller: what the table of caller_rights.py says, and no more.

The server has no Temporal here: a request that a caller may send ends with 503, or with what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.alias_generators import to_snake
from starlette.testclient import TestClient
from temporalio.client import Client
from temporalio.service import RetryConfig

from mulligan import Agent
from mulligan.activities.pin_facts import _client_instructions
from mulligan.run_input import NOT_WRITTEN, RunInput, parse_run_input
from mulligan.serve import Caller
from mulligan.serve.ag_ui import ForwardedProps, RunAgentInput
from mulligan.serve.ai_sdk import ChatRequest
from mulligan.serve.api import NewFork, NewRun, Resume
from mulligan.serve.caller_rights import FIELDS, ROUTES, Least, check_fields, least_of_route, may
from mulligan.serve.client_account import MARK, QUOTE
from mulligan.serve.client_metadata import run_metadata, shown_metadata
from mulligan.serve.create_app import PROTOCOLS, create_app
from mulligan.serve.mcp_api.agent_tools import RUN_TOOLS, AgentCall
from mulligan.serve.openapi_document import CALLERS
from mulligan.serve.problems import Problem
from mulligan.serve.runs import NOTHING_IGNORED, _as_sent_by
from mulligan.serve.served_request import ServedRequest
from mulligan.serve.undo import Undo
from mulligan.values import AssistantMessage, ToolMessage, UserMessage
from mulligan.wire.start_input import StartInput
from mulligan.wire.updates import Answer, Decide, SendMessage, Stop

PAGE = Path(__file__).parents[2] / "docs" / "serving-callers.md"
TOKENS = "shop:token-of-shop::finance,root:token-of-root:*"
FOR_ADA = {"Mulligan-User": "ada"}
TRUSTED = {**FOR_ADA, "Mulligan-Trusted": "true"}


def _by(token: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{token}", **headers}


SENDERS: dict[str, tuple[str, dict[str, str], str]] = {
    "a customer of authenticate": ("authenticate", {"X-Who": "customer"}, "customer"),
    "a trusted caller of authenticate": ("authenticate", {"X-Who": "trusted"}, "trusted"),
    "an operator of authenticate": ("authenticate", {"X-Who": "operator"}, "operator"),
    "a header means nothing to authenticate": ("authenticate", {"X-Who": "customer", **TRUSTED}, "customer"),
    "a token": ("tokens", _by("shop"), "trusted"),
    "a token for a user": ("tokens", _by("shop", **FOR_ADA), "customer"),
    "a token for a person": ("tokens", _by("shop", **TRUSTED), "trusted"),
    "a token that is not sure": ("tokens", _by("shop", **FOR_ADA, **{"Mulligan-Trusted": "yes"}), "customer"),
    "trusted, of nobody": ("tokens", _by("shop", **{"Mulligan-Trusted": "true"}), "trusted"),
    "an operator's token": ("tokens", _by("root"), "operator"),
    "an operator's token for a user": ("tokens", _by("root", **FOR_ADA), "customer"),
    "an operator's token for a person": ("tokens", _by("root", **TRUSTED), "operator"),
    "anybody": ("nobody", {}, "operator"),
    "anybody for a user": ("nobody", FOR_ADA, "customer"),
}
"""A server, the headers of a request, and what kind of caller sends it."""
CUSTOMER = Caller("ada", tenant="shop", metadata={"plan": "free"})
OTHERS = [Caller("shop", trusted=True), Caller("root", operator=True)]


def authenticated(request: Any) -> Caller:
    who = request.headers["x-who"]
    return Caller("ada", tenant="shop", trusted=who == "trusted", operator=who == "operator")


@pytest.fixture(scope="module")
def servers() -> dict[str, TestClient]:
    options: dict[str, Any] = {
        "authenticate": {"tokens": "", "authenticate": authenticated},
        "tokens": {"tokens": TOKENS},
        "nobody": {"tokens": ""},
    }
    more: dict[str, Any] = {"base_url": "http://127.0.0.1", "follow_redirects": False, "raise_server_exceptions": False}
    return {name: TestClient(create_app(client=_away(), **each), **more) for name, each in options.items()}


@cache
def _away() -> Client:
    """A client of a server that does not answer."""
    import asyncio

    retries = RetryConfig(initial_interval_millis=1, max_interval_millis=1, max_elapsed_time_millis=1, max_retries=1)
    return asyncio.run(Client.connect("127.0.0.1:1", lazy=True, retry_config=retries))


def routes_of(router: Any) -> Iterator[tuple[str, str]]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield from ((method, route.path) for method in route.methods or ())
        else:
            yield from routes_of(route.original_router)


ALL_ROUTES = sorted({each for protocol in PROTOCOLS for each in routes_of(protocol.router)})


def test_each_route_has_a_row_and_each_row_a_route() -> None:
    def row(method: str, path: str) -> str:
        exact = f"{method} {path.replace(':path}', '}')}"
        return exact if exact in ROUTES else max((each for each in ROUTES if each.endswith("*") and path.startswith(each[2:-1])), key=len, default="none")  # fmt: skip

    assert {row(*each) for each in ALL_ROUTES} == set(ROUTES)
    assert least_of_route("GET", "/api/something-new") == "operator"


@pytest.mark.parametrize(("request_name", "field"), [("NewRun", "max_cost"), ("NewRun", "maxCost"), ("Stop", "reason")])
def test_a_field_that_nobody_lists_is_refused_to_customers(
    request_name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIELDS, request_name, {})
    with pytest.raises(Problem, match=f'"{field}"'):
        check_fields(CUSTOMER, request_name, {field: 1})
    check_fields(OTHERS[0], request_name, {field: 1})


@pytest.mark.parametrize("sender", SENDERS)
def test_each_route_is_refused_to_those_whom_the_table_does_not_name(
    sender: str, servers: dict[str, TestClient]
) -> None:
    server, headers, kind = SENDERS[sender]
    for method, path in ALL_ROUTES:
        least = least_of_route(method, path)
        address = path.replace(":path}", "}").replace("{", "").replace("}", "") + "?step=1"
        answer = servers[server].request(method, address, headers=headers, content=b"{}" if method == "POST" else None)
        assert answer.status_code != 401 or path == "/console/sign-in", (method, path)
        is_customers = "not for customers" in answer.text or (method == "HEAD" and answer.status_code == 403)
        assert is_customers == (kind == "customer" and least in ("trusted", "operator")), (method, path, answer.text)
        assert not is_customers or answer.status_code == 403
        if least == "operator" and kind == "trusted":
            assert answer.status_code in (403, 503), (
                method,
                path,
                answer.text,
            )  # 503: it looks whether there is the run


REQUEST_MODELS: list[type[BaseModel]] = [
    *(NewRun, Resume, NewFork, SendMessage, Decide, Answer, Stop, Undo, ChatRequest, RunAgentInput, AgentCall),
    *(model for model, _ in RUN_TOOLS.values()),
]
MODELS = {each.__name__: each for each in REQUEST_MODELS}


def names_of(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_each_field_of_each_request_has_a_row_and_each_row_a_field() -> None:
    assert {name: names_of(model) for name, model in MODELS.items()} == {
        name: set(rows) for name, rows in FIELDS.items() if name in MODELS
    }
    assert set(FIELDS["NewRun"]) == {*RunInput.model_fields, "id"}
    assert set(FIELDS["forwardedProps"]) == names_of(ForwardedProps)
    assert set(FIELDS) == {*MODELS, "forwardedProps", "responses", "chat/completions"}


VALUES: dict[str, Any] = {
    "max_steps": 3,
    "max_total_tokens": 100,
    "max_cost": 0.01,
    "max_depth": 0,
    "max_sub_runs": 0,
    "priority": 1,
    "metadata": {"alone_up_to": "9999"},
    "client_metadata": {"a": "b"},
    "messages": [{"role": "user", "text": "Hi."}],
    "content": [{"type": "text", "text": "Hi."}],
    "on_invalid_tool_input": "throw",
    "traceparent": f"00-{1:032x}-{1:016x}-01",
    "decision": "approve",
    "remember": "tenant",
    "arguments": {"euros": 1},
    "edits": 0,
    "roles": ["finance"],
    "agents": ["shop"],
}
"""A valid value of each field that is no text."""
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "NewRun": ("/api/runs", {"agent": "shop", "prompt": "Go."}),
    "Resume": ("/api/runs/r/resume", {}),
    "SendMessage": ("/api/runs/r/messages", {"text": "Hi."}),
    "Decide": ("/api/runs/r/decisions", {"call_id": "c1", "decision": "approve"}),
    "Answer": ("/api/runs/r/answers", {"call_id": "c1", "text": "Green."}),
    "Stop": ("/api/runs/r/stop", {}),
}
SPELLINGS = {
    name: [name, *(each for each in getattr(field.validation_alias, "choices", ()) if each != name)]
    for name, field in RunInput.model_fields.items()
}


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_each_field_of_the_api_is_refused_to_those_whom_the_table_does_not_name(
    request_name: str, sender: str, servers: dict[str, TestClient]
) -> None:
    server, headers, kind = SENDERS[sender]
    path, body = REQUESTS[request_name]
    for name, least in FIELDS[request_name].items():
        for spelling in SPELLINGS[name] if request_name == "NewRun" and name in SPELLINGS else [name]:
            value = VALUES.get(name, "current" if name == "version" else "x")
            answer = servers[server].post(path, headers=headers, json={**body, spelling: value})
            if kind == "customer" and least != "customer":
                problem = answer.json()
                assert (answer.status_code, problem["code"], problem["fields"]) == (403, "trusted_only", [spelling])
                continue
            assert answer.status_code == 503 or answer.json()["code"] in ("foreign_tenant", "foreign_user"), answer.text
        nothing = servers[server].post(path, headers=headers, json={**body, name: None}) if name not in body else None
        assert nothing is None or nothing.json().get("code") != "trusted_only"


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("name", [*NOT_WRITTEN, "modelOnly", "resumedFrom"])
def test_what_only_mulligan_writes_is_refused_by_its_name(
    name: str, sender: str, servers: dict[str, TestClient]
) -> None:
    server, headers, _ = SENDERS[sender]
    refused = servers[server].post("/api/runs", headers=headers, json={"agent": "shop", "prompt": "Go.", name: {}})
    instead = NOT_WRITTEN[to_snake(name)]
    assert (refused.status_code, refused.json()["detail"]) == (422, f'"{name}" is set by Mulligan alone; {instead}.')


@pytest.mark.parametrize("sender", SENDERS)
def test_conversation_is_not_a_field_of_a_start_yet(sender: str, servers: dict[str, TestClient]) -> None:
    server, headers, _ = SENDERS[sender]
    body = {"agent": "shop", "prompt": "Go.", "conversation": "c"}
    refused = servers[server].post("/api/runs", headers=headers, json=body)
    assert (refused.status_code, refused.json()["detail"][:35]) == (422, '"conversation" is not a known field')


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/ai-sdk/shop", {"id": "c", "messages": [], "model": "m", "max_cost": 9, "nothing": None}, "model, max_cost"),
        (
            "/ag-ui/shop",
            {"threadId": "t", "runId": "r", "resume": [], "state": {"a": 1}, "tools": [], "model": "m", "forwardedProps": {"user": "bob", "regenerate": False}},
            "state, model, forwardedProps.user",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sender", SENDERS)
def test_other_protocols_name_what_they_ignore_of_a_customer_s_request(
    sender: str, path: str, body: Any, named: str, servers: dict[str, TestClient]
) -> None:
    server, headers, kind = SENDERS[sender]
    answer = servers[server].post(path, headers=headers, json=body)
    assert answer.status_code in (422, 503)
    assert answer.headers.get("mulligan-ignored") == (named if kind == "customer" else None)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
LINES = st.lists(st.sampled_from(["x", "\n", "\r", "\u2028", "\x85", "> y", QUOTE, MARK, " "]), max_size=6).map("".join)
CALLS = st.builds(lambda n, arguments: {"id": f"c{n}", "name": "pay", "arguments": arguments}, st.integers(0, 3), LINES)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages that a run accepts: a result for each call, right after it."""
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            messages.append({"role": "user", "text": draw(LINES) or "."})
            continue
        calls = draw(st.lists(CALLS, max_size=3, unique_by=lambda call: call["id"]))
        answer: dict[str, Any] = {"role": "assistant", "text": draw(LINES), "tool_calls": calls}
        if draw(st.booleans()):
            answer["provider_data"] = {"openai": {"signature": "s"}}
        messages.append(answer)
        messages += ({"role": "tool", "call_id": call["id"], "name": "pay", "text": draw(LINES)} for call in calls)
    return [*messages, {"role": "user", "text": "Go on."}]


METADATA = st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=4)


@given(
    conversations(),
    METADATA,
    st.dictionaries(st.sampled_from([*SPELLINGS]), st.just(None) | st.just("set"), max_size=4),
)
def test_of_a_customer_s_start_only_words_reach_the_run(
    messages: list[dict[str, Any]], metadata: dict[str, str], more: dict[str, str | None]
) -> None:
    sent = {name: VALUES.get(name, "x") for name, value in more.items() if value and name not in ("agent", "messages")}
    body = {"agent": "shop", **sent, "messages": messages, "metadata": metadata}
    refused = [name for name in sent if FIELDS["NewRun"][name] != "customer"]
    if refused:
        with pytest.raises(Problem) as problem:
            check_fields(CUSTOMER, "NewRun", body)
        assert problem.value.fields == sorted(refused)
        return
    check_fields(CUSTOMER, "NewRun", body)
    for other in OTHERS:
        check_fields(other, "NewRun", body)
    parsed = parse_run_input(json.dumps(body).encode())
    run_input = _as_sent_by(CUSTOMER, parsed)
    assert (run_input.metadata, run_input.client_metadata) == ({"plan": "free"}, metadata)
    assert shown_metadata(CUSTOMER, run_input) == metadata
    said = [message.text for message in parsed.messages if isinstance(message, UserMessage)]
    for message in run_input.messages:
        assert not isinstance(message, ToolMessage)
        if isinstance(message, AssistantMessage):
            assert message.text.startswith(f"{MARK}\n")
            assert (message.tool_calls, message.provider_data) == ([], None)
        elif message.text not in said:
            first, *quoted = message.text.splitlines()
            assert (first, quoted != []) == (QUOTE, True)
            assert all(line.startswith("> ") for line in quoted)
    kept = {"agent", "prompt", "messages", "metadata", "client_metadata"}
    assert run_input.model_fields_set - kept == set()
    assert parse_run_input(run_input.model_dump_json().encode()) == run_input
    for other in OTHERS:
        its = _as_sent_by(other, parsed)
        assert (its.metadata, its.client_metadata, its.messages) == (metadata, {}, parsed.messages)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({str(number): "x" for number in range(17)}, "has 17 texts; send at most 16"),
        ({"n" * 65: "x"}, "a name may have 64"),
        ({"n": "x" * 513}, "a text 512"),
    ],
)
def test_a_customer_s_metadata_is_bounded(metadata: dict[str, str], says: str) -> None:
    with pytest.raises(Problem, match=says):
        run_metadata(CUSTOMER, metadata)
    run_metadata(Caller("shop", trusted=True), metadata)  # up to the limit of a run's input


def test_metadata_of_a_turn_are_those_of_its_own_request() -> None:
    backend = Caller("shop", trusted=True)
    for trusted in (backend, Caller("shop", trusted=True, metadata={"desk": "1"})):
        assert run_metadata(trusted, None) == {}  # a resume without any keeps what the run has
    assert run_metadata(backend, {}) == {"metadata": {}, "client_metadata": {}}
    assert run_metadata(CUSTOMER, None, {"thread_id": "t"}) == {
        "metadata": {"plan": "free", "thread_id": "t"},
        "client_metadata": {},
    }
    known = Caller("ada", trusted=True, metadata={"plan": "free", "desk": "1"})
    given = run_metadata(known, {"plan": "gold"}, {"thread_id": "t"})
    assert given["metadata"] == {"plan": "gold", "desk": "1", "thread_id": "t"}
    assert shown_metadata(known, RunInput(agent="a", prompt="p", metadata={"plan": "gold", "desk": "1"})) == {
        "plan": "gold"
    }


@pytest.mark.parametrize("declared", ["context", "ignore", "refuse", None, "not known"])
@pytest.mark.parametrize("caller", [CUSTOMER, *OTHERS])
def test_whose_instructions_count(caller: Caller, declared: str | None) -> None:
    """At the door; and at the worker, where the door does not know the agent."""
    agent = {"name": "shop"} if declared == "not known" else {"name": "shop", "client_instructions": declared}
    given = {"metadata": {}, "client_metadata": {}, "client_instructions": "Be brief."}
    with ServedRequest.serving({}):
        if declared == "refuse":
            with pytest.raises(Problem, match="refused"):
                NOTHING_IGNORED.accept(caller, agent, given, strict=False)
            return
        taken = NOTHING_IGNORED.accept(caller, agent, given, strict=False)
        ignored = ServedRequest.current().ignored
    is_ignored = declared == "ignore" or (declared is None and caller.is_customer)
    if is_ignored:
        assert ("client_instructions" in taken, "instructions_by_customer" in taken) == (False, False)
        own = "client_metadata" if caller.is_customer else "metadata"
        assert (ignored, taken[own]) == ("instructions", {"mulligan-ignored": "instructions"})
        return
    assert (ignored, taken) == ("", {**given, "instructions_by_customer": caller.is_customer})
    run_input = StartInput(agent="shop", prompt="Go.").with_fields(**taken)
    default = _client_instructions(Agent(name="shop", model="scripted:x"), run_input, may_refuse=True)
    assert default == ("" if caller.is_customer else "Be brief.")
    explicit = Agent(name="shop", model="scripted:x", client_instructions="context")
    assert _client_instructions(explicit, run_input, may_refuse=True) == "Be brief."


@pytest.mark.parametrize("agents", [None, ["shop"]])
def test_a_customer_sees_their_own_runs_a_trusted_caller_their_tenant_s_an_operator_all(agents: Any) -> None:
    runs = [(agent, tenant, user) for agent in ("shop", "desk") for tenant in ("t", "u", None) for user in ("ada", "bob", None)]  # fmt: skip

    def seen(caller: Caller) -> list[tuple[str, str | None, str | None]]:
        return [each for each in runs if caller.may_see(agent=each[0], tenant=each[1], user=each[2])]

    def expected(**wanted: Any) -> list[tuple[str, str | None, str | None]]:
        names = ("agent", "tenant", "user")
        served = [each for each in runs if agents is None or each[0] in agents]
        return [each for each in served if wanted.items() <= dict(zip(names, each, strict=True)).items()]

    customer = Caller("A. Lovelace", tenant="t", user="ada", agents=agents)
    assert seen(customer) == expected(tenant="t", user="ada")
    assert seen(Caller("x", tenant="t", user="ada", agents=agents, trusted=True)) == expected(tenant="t")
    assert seen(Caller("x", tenant="t", operator=True, agents=agents)) == runs
    assert seen(Caller("x", tenant="t", trusted=True, agents=agents).as_customer("bob")) == expected(tenant="t", user="bob")  # fmt: skip
    assert customer.scope != Caller("b", tenant="t", user="bob").scope
    assert Caller("x", tenant="t", user="ada", trusted=True).scope == Caller("y", tenant="t", trusted=True).scope


@pytest.mark.parametrize("name", ["trusted", "operator"])
def test_a_text_is_no_right(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Caller\({name}=…\) has the type str"):
        Caller("ada", **{name: "no"})  # type: ignore[arg-type]


@pytest.mark.parametrize("metadata", ["plan", {"plan": 1}, {1: "x"}, None, {"plan": "\ud800"}])
def test_the_metadata_of_a_caller_are_texts(metadata: Any) -> None:
    with pytest.raises(ValueError, match=r"metadata|surrogates"):
        Caller("ada", metadata=metadata)
    assert hash(Caller("ada", metadata={"plan": "x"})) == hash(Caller("ada", metadata={"plan": "x"}))


def test_one_user_header_counts_and_two_are_refused(servers: dict[str, TestClient]) -> None:
    headers = [("Authorization", "Bearer token-of-shop"), ("Mulligan-User", "ada"), ("Mulligan-User", "bob")]
    refused = servers["tokens"].get("/api/runs", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_user")


def test_the_document_says_for_whom_fields_and_routes_are() -> None:
    document = create_app(tokens=TOKENS).openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get(CALLERS, "customer") == shown(least_of_route(method.upper(), path))
    schemas = document["components"]["schemas"]
    for name in FIELDS.keys() & schemas.keys():
        for field, schema in schemas[name]["properties"].items():
            assert schema.get(CALLERS, "customer") == shown(FIELDS[name][field]), (name, field)


def shown(least: Least) -> str:
    return "customer" if least == "anyone" else least


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    for method_and_path, least in ROUTES.items():
        is_console = "/console" in method_and_path or method_and_path.endswith(" /")
        if least in ("trusted", "operator") and not is_console:
            assert f"`{method_and_path}`" in page, method_and_path
    for request in ("NewRun", "Resume", "SendMessage", "Decide", "Answer", "Stop"):
        row = ", ".join(f"`{name}`" for name, least in FIELDS[request].items() if least == "customer")
        assert f"{row} |" in page, (request, row)
    assert may(CUSTOMER, "customer")
