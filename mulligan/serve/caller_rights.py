"""What each kind of caller may send, and which routes they may use: one table for all protocols.

The doors, the OpenAPI document and docs/serving-callers.md read it. What it does not list is refused to customers, and
tests/unit/test_caller_rights.py fails for a route, or a field of a request, that it does not list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from fastapi import Request

from mulligan.run_input import RunInput
from mulligan.serve.caller import Caller, Kind
from mulligan.serve.problems import Problem

Least = Literal["anyone", Kind]
"""Who may do something: this kind of caller, and those after it. `anyone`: also who has not signed in."""
_ORDER: tuple[Least, ...] = ("anyone", "customer", "trusted", "operator")


def _all(least: Least, *names: str) -> dict[str, Least]:
    return dict.fromkeys(names, least)


FIELDS: Mapping[str, Mapping[str, Least]] = {
    "NewRun": {
        **_all("customer", "agent", "prompt", "messages", "id", "metadata"),
        **_all("trusted", "model", "version", "priority", "traceparent", "on_invalid_tool_input", "tenant", "user"),
        **_all("trusted", "max_steps", "max_total_tokens", "max_cost", "max_depth", "max_sub_runs"),
        **_all("trusted", "client_instructions", "client_metadata"),
    },
    "Resume": {**_all("customer", "prompt", "id", "metadata"), **_all("trusted", "max_steps", "model")},
    "SendMessage": _all("customer", "text", "content", "id", "conversation"),
    "Decide": {
        **_all("customer", "call_id", "decision", "reason", "edits", "conversation"),
        **_all("trusted", "arguments", "remember", "by", "roles", "agents"),
    },
    "Answer": {**_all("customer", "call_id", "text", "conversation"), **_all("trusted", "by")},
    "Stop": {**_all("customer", "reason", "conversation"), **_all("trusted", "by")},
    "NewFork": _all(
        *("trusted", "id", "at", "edits", "tools", "unrecorded", "max_steps", "max_cost"),
        *("conversation", "pinned", "version"),
    ),
    "Undo": _all("trusted", "from_step", "continue", "lost", "although_continued"),
    "ChatRequest": _all("customer", "id", "messages", "trigger", "messageId", "metadata"),
    "RunAgentInput": _all("customer", "threadId", "runId", "messages", "resume", "forwardedProps"),
    "forwardedProps": _all("customer", "regenerate", "metadata"),
    "responses": _all(
        *("customer", "model", "input", "instructions", "stream", "background", "metadata"),
        *("previous_response_id", "conversation"),
    ),
    "chat/completions": _all("customer", "model", "messages", "stream", "stream_options.include_usage", "metadata"),
    "AgentCall": _all("customer", "prompt", "metadata"),
    "StartRun": _all("customer", "agent", "prompt", "metadata", "run_id"),
    "WaitForRun": _all("customer", "run_id", "seconds"),
    "DecideCall": _all("customer", "run_id", "call_id", "decision", "reason"),
    "AnswerQuestion": _all("customer", "run_id", "call_id", "text"),
}
"""The fields of each request: by the name of its model, or for `/v1` of its path."""
ROUTES: Mapping[str, Least] = {
    "POST /api/runs": "customer",
    "GET /api/runs": "customer",
    "GET /api/runs/{id}": "customer",
    "GET /api/runs/{id}/steps": "customer",
    "GET /api/runs/{id}/messages": "customer",
    "GET /api/runs/{id}/pending": "customer",
    "GET /api/runs/{id}/events": "customer",
    "POST /api/runs/{id}/messages": "customer",
    "POST /api/runs/{id}/decisions": "customer",
    "POST /api/runs/{id}/answers": "customer",
    "POST /api/runs/{id}/stop": "customer",
    "POST /api/runs/{id}/cancel": "customer",
    "POST /api/runs/{id}/resume": "customer",
    "POST /api/runs/{id}/fork": "trusted",
    "GET /api/runs/{id}/undo": "trusted",
    "POST /api/runs/{id}/undo": "trusted",
    "GET /api/runs/{id}/context": "operator",
    "GET /api/agents": "customer",
    "GET /api/rules": "trusted",
    "DELETE /api/rules/{name}": "trusted",
    "POST /api/callbacks/{token}": "anyone",
    "POST /api/webhooks/openai": "anyone",
    "POST /v1/responses": "customer",
    "GET /v1/responses/{response_id}": "customer",
    "POST /v1/responses/{response_id}/cancel": "customer",
    "POST /v1/responses/{path}": "customer",
    "POST /v1/chat/completions": "customer",
    "GET /v1/conversations/{conversation}": "customer",
    "GET /v1/conversations/{conversation}/items": "customer",
    "GET /v1/models": "customer",
    "GET /v1/models/{model}": "customer",
    "POST /ag-ui/{agent}": "customer",
    "GET /ag-ui/{agent}/{thread}": "customer",
    "POST /ai-sdk/{agent}": "customer",
    "GET /ai-sdk/{agent}/{chat}": "customer",
    "GET /ai-sdk/{agent}/{chat}/stream": "customer",
    "POST /mcp": "customer",
    "GET /": "trusted",
    "HEAD /": "trusted",
    "GET /console/sign-in": "anyone",
    "POST /console/sign-in": "anyone",
    "GET /console/assets/{name}": "anyone",
    "* /console/*": "trusted",
    "* /console/experiments*": "operator",
    "GET /console/runs/{run_id}/context": "operator",
}
"""By method and path, as in the OpenAPI document. `*` at the end: all paths that begin so, which no other row names; the
longest one counts."""
_NAMES = {
    alias: name
    for name, field in RunInput.model_fields.items()
    for alias in getattr(field.validation_alias, "choices", ())
}
"""The other spellings of fields."""
_OF_RUNS = {*RunInput.model_fields, *FIELDS["NewRun"]}


def may(caller: Caller, least: Least) -> bool:
    """Whether a caller is of a kind that may do something."""
    return _ORDER.index(caller.kind) >= _ORDER.index(least)


def least_of_route(method: str, path: str) -> Least:
    """Who may use a route, by its path as it is declared: what no row has is for operators."""
    path = path.replace(":path}", "}")
    if (least := ROUTES.get(f"{method} {path}")) is not None:
        return least
    below = [row for row in ROUTES if row.endswith("*") and path.startswith(row.removeprefix("* ")[:-1])]
    return ROUTES[max(below, key=len)] if below else "operator"


async def check_route(request: Request) -> None:
    """Refuse a route to callers who may not use it, before it looks at anything: whether a run exists is not told.

    Raises:
        Problem: they may not.
    """
    caller = request.scope.get("mulligan.caller")
    if (
        caller is not None
    ):  # on a public path, whoever reads it checks its sender: callbacks, and the console's sessions
        check_caller(request, caller)


def check_caller(request: Request, caller: Caller) -> None:
    """Refuse the route of a request to a caller who may not use it.

    Raises:
        Problem: they may not.
    """
    least = least_of_route(request.method, request.scope["route"].path)
    if not may(caller, least) and caller.is_customer:  # what is for operators says so itself
        raise Problem(403, "trusted_only", "This is not for customers: the caller must be trusted, or an operator.")


def check_fields(caller: Caller, request: str, given: Mapping[str, object]) -> None:
    """Refuse fields of a request that are not for a customer. Null counts as not sent. `given` has the fields of the
    request's model; only of a new run it is the JSON as it was sent, of which the parser refuses what no run has.

    Raises:
        Problem: there are some.
    """
    if not caller.is_customer:
        return
    table = FIELDS[request]
    names = {name: _NAMES.get(name, name) for name, value in given.items() if value is not None}
    known = {name: real for name, real in names.items() if request != "NewRun" or real in _OF_RUNS}
    if refused := sorted(name for name, real in known.items() if not may(caller, table.get(real, "operator"))):
        named = ", ".join(f'"{name}"' for name in refused)
        raise Problem(
            403, "trusted_only", f"{named}: only trusted callers and operators may send this. Leave it out.",
            fields=refused,
        )  # fmt: skip


def unread(caller: Caller, request: str, given: Iterable[tuple[str, object]], prefix: str = "") -> list[str]:
    """The names of what a customer sends to a protocol that has no effect: it has a value, and is not in the table."""
    nothing: tuple[object, ...] = (None, "", [], {})
    table = FIELDS[request]
    return [
        f"{prefix}{name}"
        for name, value in given
        if caller.is_customer and not may(caller, table.get(name, "operator")) and value not in nothing
    ]
