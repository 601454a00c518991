"""The client that the MCP conformance suite tests: our session, driven through one scenario.

The suite starts it with the scenario's name, and what it needs, in the environment (mcp_conformance_forks.py).
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.shared.auth import AuthorizationCodeResult

from mulligan import McpServer, OAuthClientCredentials, OAuthLogin
from mulligan.activities.check_answer import parse_answer
from mulligan.activities.mcp import transport
from mulligan.activities.mcp.oauth import interactive_login
from mulligan.activities.mcp.servers import McpServers
from mulligan.mcp import McpError
from mulligan.wire.questions import Question, QuestionReply, Questions, Replies

METADATA = "https://conformance-test.local/client-metadata.json"


def context() -> dict[str, Any]:
    """What the scenario gives to its client."""
    given: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return given


async def agree(question: Question) -> QuestionReply:
    """A person who submits each form as it is, or agrees."""
    fields = (question.answer_schema or {}).get("properties", {})
    required = (question.answer_schema or {}).get("required", [])
    assert isinstance(fields, dict)
    assert isinstance(required, list)
    values: dict[str, Any] = {"string": "x", "integer": 1, "number": 1, "boolean": True}
    given = {
        name: values.get(fields[name].get("type"), "x")  # type: ignore[union-attr, index, arg-type]
        for name in required
        if isinstance(fields[name], dict) and "default" not in fields[name]  # type: ignore[index, operator]
    }
    return QuestionReply(action="accept", content=parse_answer(question.answer_schema or {}, json.dumps(given)))


class Browser:
    """A person's browser, whose user agrees at once."""

    def __init__(self) -> None:
        self.location = ""

    async def show(self, url: str) -> None:
        async with httpx2.AsyncClient() as http:
            self.location = (await http.get(url)).headers["location"]

    async def wait(self) -> AuthorizationCodeResult:
        fields = {name: values[0] for name, values in parse_qs(urlsplit(self.location).query).items()}
        return AuthorizationCodeResult.model_validate({"code": "", **fields})


async def issuer_of(url: str) -> str:
    """The authorization server that an operator would configure: here, the one of the scenario's server."""
    origin = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
    async with httpx2.AsyncClient() as http:
        for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
            found = await http.get(origin + path)
            if found.status_code == 200:
                return str(found.json()["authorization_servers"][0])
    return origin


async def auth_for(url: str) -> OAuthClientCredentials | OAuthLogin | None:
    scenario, given = os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), context()
    if not scenario.startswith("auth/"):
        return None
    client_id, secret = given.get("client_id"), given.get("client_secret")
    if "client-credentials" in scenario:
        key = given.get("private_key_pem")
        return OAuthClientCredentials(
            str(client_id),
            client_secret=None if key else secret,
            private_key=key,
            issuer=await issuer_of(url),
            algorithm=given.get("signing_algorithm", "RS256"),
        )
    os.environ["MULLIGAN_MCP_LOGINS"] = tempfile.mkdtemp()
    return OAuthLogin(client_id=client_id, client_secret=secret, client_metadata_url=METADATA)


async def main(url: str) -> None:
    server = McpServer("conformance", url=url, auth=await auth_for(url), timeout=20)
    if isinstance(server.auth, OAuthLogin):
        browser = Browser()
        login = interactive_login(server, "http://127.0.0.1:3000/callback", browser.show, browser.wait)
        connect: Any = transport.connect_to
        from mulligan.activities.mcp import session as session_module

        vars(session_module)["connect_to"] = lambda *given: connect(*given, login)
    servers = McpServers()
    async with servers.running():
        session = servers._session(server)

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            pass

        tools = (await session.tools()).tools
        for tool in tools:
            listed = {each["name"]: each["arguments"] for each in context().get("toolCalls", ())}
            arguments = listed.get(tool.name) or sample(tool.input_schema)
            if list(tool.input_schema.get("properties", {})) == ["schema"]:
                # Asked for the schema of the other tool, as it arrived here.
                arguments = {"schema": next(each.input_schema for each in tools if each.name != tool.name)}
            replies = None
            with suppress(McpError):
                while isinstance(
                    result := await session.call(tool.name, arguments, progress, ask=agree, replies=replies), Questions
                ):
                    answers = {question.key: await agree(question) for question in result.questions}
                    rounds = replies.round + 1 if replies else 1
                    replies = Replies(replies=answers, state=result.state, round=rounds)


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that a schema accepts."""
    values = {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    fields = schema.get("properties", {})
    return {name: values.get(str(field.get("type")), "x") for name, field in fields.items() if isinstance(field, dict)}
