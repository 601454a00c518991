"""What chat front ends ask for by themselves beside a conversation: titles, tags, follow-up questions.

The operator describes such requests in a file (`MULLIGAN_SIDE_REQUESTS`), and names what serves them: it must not start the
tools of the agent that the person talks to. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mulligan.client.operator_file import OperatorFile
from mulligan.model_name import ModelName
from mulligan.serve.caller import Caller
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs

SETTING = "MULLIGAN_SIDE_REQUESTS"
FORM = (
    'tables [[request]] with prompt = "how it begins" or header = "name: value" (or both), and agent = "titles" or '
    'model = "openai:gpt-5-nano"'
)
MOST_DESCRIBED = 100
_Text = Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"\S")]
Json = dict[str, Any]


@dataclass(frozen=True)
class ServedBy:
    """What serves a request: an agent, or with `model` that model alone, in the name of the agent."""

    agent: str
    model: str | None = None
    is_side: bool = False

    @property
    def input_fields(self) -> Json:
        """The fields of a RunInput that say so."""
        return {"agent": self.agent, **({"model": self.model} if self.model else {})}

    async def check(self, runs: Runs, caller: Caller) -> bool:
        """Check that a side request starts no tools. Returns whether its run has the model alone.

        Raises:
            Problem: the agent has tools, the caller may not use it, or no worker answers that knows whether it has any.
        """
        if not self.is_side or self.model:
            return self.model is not None
        described = await runs.agent(caller, self.agent)
        if described.keys() == {"name"}:
            raise Problem(503, "no_worker", f"No worker says now whether the agent {self.agent[:80]!r} has tools.")
        if described.get("has_tools", True):
            raise Problem(
                400, "side_agent_has_tools", f"This is a side request by {SETTING}, whose agent {self.agent[:80]!r} has "
                "tools. The operator of this server has to name an agent without tools there, or a model.",
            )  # fmt: skip
        return False


NOBODY = ServedBy("")
"""For a request that starts no run."""


class SideRequest(BaseModel):
    """A request that the operator describes, and what serves it: an agent without tools, or a model alone."""

    model_config = ConfigDict(extra="forbid")

    prompt: _Text | None = None
    """How the client's instructions, or the newest message of the user, begin."""
    header: _Text | None = None
    """A header that the request has: its name, or `name: value`."""
    agent: _Text | None = None
    """It may have no tools."""
    model: _Text | None = None
    """The run is one of the agent that the client names, without its instructions and tools."""

    @model_validator(mode="after")
    def _is_whole(self) -> SideRequest:
        if self.prompt is None and self.header is None:
            raise ValueError("it has neither prompt nor header")
        if (self.agent is None) == (self.model is None):
            raise ValueError("it needs either agent or model")
        if self.model is not None and "" in (ModelName.parse(self.model).provider, ModelName.parse(self.model).name):
            raise ValueError("model is not provider:NAME")
        return self

    def describes(self, headers: Mapping[str, str], texts: Sequence[str]) -> bool:
        """Whether a request is one of these. `texts`: the client's instructions, and the newest message of the user."""
        if self.prompt is not None and not any(text.lstrip().startswith(self.prompt.lstrip()) for text in texts):
            return False
        name, _, value = (self.header or "").partition(":")
        sent = headers.get(name.strip()) if self.header is not None else ""
        return sent is not None and value.strip() in ("", sent.strip())


class SideRequests(BaseModel):
    """All such requests; the first that describes a request counts."""

    model_config = ConfigDict(extra="forbid")

    request: Annotated[list[SideRequest], Field(max_length=MOST_DESCRIBED)] = []

    def served_by(
        self, headers: Mapping[str, str], agent: str, instructions: str, messages: Sequence[Json]
    ) -> ServedBy:
        """What serves a request that starts a run. `agent`: the one that the client names."""
        if not self.request:
            return ServedBy(agent)
        newest = next((each for each in reversed(messages) if each["role"] == "user"), {})
        parts = [each.get("text", "") for each in newest.get("content", ()) if each["type"] == "text"]
        texts = [instructions, newest.get("text") or "".join(parts)]
        side = next((each for each in self.request if each.describes(headers, texts)), None)
        if side is None:
            return ServedBy(agent)
        return ServedBy(side.agent or agent, side.model, is_side=True)


def side_requests_of(request: Request) -> SideRequests:
    """What the application that serves a request knows of side requests."""
    file: OperatorFile[SideRequests] = request.app.state.side_requests
    return file.read()


def side_requests(path: str) -> OperatorFile[SideRequests]:
    """The operator's file.

    Raises:
        DeclarationError: it cannot be read, or has something else.
    """
    return OperatorFile(SETTING, path, SideRequests, FORM)
