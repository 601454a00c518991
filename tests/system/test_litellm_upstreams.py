"""LiteLLM's proxy before Anthropic's, Google's and Amazon's APIs, which refuse what the services refuse: whole runs, in each API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import Agent, Model
from mulligan.worker.loading import load_agents
from tests.support.litellm_proxy import KEY, litellm_proxy
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer, Reasoning
from tests.support.openai_turn import Turn
from tests.unit.test_zoo import BEFORE, OPTIONS, RAN, broken, in_turn, listing, nothing, pay, photo

UPSTREAMS = {
    "claude-sonnet-4-5": "claude-sonnet-4-5",
    "gemini-3-pro-preview": "gemini-3-pro-preview",
    "bedrock-claude": "anthropic.claude-sonnet-4-5-20250929-v1:0",
}
"""The models of the proxy, and their names at the services."""


@pytest.fixture(scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryLab]:
    patch = pytest.MonkeyPatch()
    patch.setenv("GATEWAY_KEY", KEY)
    async with (
        OpenAIServer() as upstream,
        litellm_proxy(upstream.base_url, tmp_path_factory.mktemp("litellm")) as base_url,
    ):
        upstream.google.takes_underscores = True
        given = {"base_url": base_url, "api_key_env": "GATEWAY_KEY"}
        models = [Model(f"{api}@gateway:none", **given) for api in ("openai-chat", "openai", "anthropic")]
        models[2] = Model("anthropic@claude:none", **{**given, "base_url": base_url.removesuffix("/v1")})
        options = {**OPTIONS, "model": models}
        clerk = Agent(name="clerk", tools=[photo, nothing, pay, broken, listing], **options)
        async with memory_lab(upstream, load_agents([clerk], [])) as at:
            yield at
    patch.undo()


@pytest.mark.parametrize("api", ["openai-chat@gateway", "openai@gateway", "anthropic@claude"])
@pytest.mark.parametrize("model", UPSTREAMS)
async def test_a_run_behind_the_gateway(lab: MemoryLab, model: str, api: str) -> None:
    """Mistakes, pictures, empty texts and odd names of arguments: each call runs once, and the run ends."""
    RAN.clear()
    thoughts = [Reasoning(summary=["Let me see."])]
    turns = [
        Turn(calls=[("pay", '{"amount": "much"}'), ("no_such_tool", "{}"), ("broken", "{}")], reasoning=thoughts),
        Turn("So.", calls=[("pay", '{"amount": 5}'), ("photo", "{}"), ("nothing", "{}")], reasoning=thoughts),
        Turn(calls=[("list_items", '{"$top": 3}')], reasoning=thoughts),
        Turn("done"),
    ]
    name = UPSTREAMS[model]
    lab.model.script(name, in_turn(*turns))
    started = len(lab.model.requests)
    ran = await lab.run_input({"agent": "clerk", "model": f"{api}:{model}", "messages": BEFORE})
    told: list[Any] = [each.refusal.message for each in lab.model.requests[started:] if each.refusal]
    assert ran.error is None, told
    assert (ran.result["status"], ran.result["output"]) == ("completed", "done"), told
    assert sorted(map(str, RAN)) == sorted(map(str, ["broken", 5, "photo", "nothing", {"$top": 3}]))
    assert len(set(told)) == len(told)
