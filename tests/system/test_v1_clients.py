"""Clients of OpenAI's APIs as they are on npm and PyPI, pointed at `/v1`: system prompt, limits, tools, approvals, a second turn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.npm_packages import installed, run_node
from tests.support.openai_door_agents import MODEL
from tests.support.openai_turn import Turn
from tests.system.features.test_serve_conversations import served
from tests.system.features.test_serve_openai import Served

__all__ = ["served"]

AI_SDK = {"ai": "7.0.173", "@ai-sdk/openai": "4.0.118"}
OPENAI_AGENTS = "openai-agents==0.24.0"
SUPPORT = Path(__file__).parent.parent / "support"
REFUND = [
    Turn("Let me see.", calls=[("refund", '{"order": 7, "amount": {"euros": 2}}', "r")]),
    Turn("Given back."),
    Turn("Bye."),
]


DELEGATE = [
    Turn("Let me ask.", calls=[("seller", '{"prompt": "Give it back."}', "d")]),
    Turn("It is done."),
    Turn("Bye."),
]


def _lines(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _texts_of_last_request(served: Served, prompt: str) -> list[str]:
    sent = served.lab.model.requests_of(MODEL, run=prompt)[-1].conversation
    return [str(each["content"]) for each in sent if each["role"] in ("user", "assistant") and each.get("content")]


@pytest.mark.parametrize("mode", ["plain", "stream"])
async def test_the_ai_sdks_openai_provider_approves_and_continues(served: Served, mode: str) -> None:
    """Its items come back as references, without `previous_response_id`."""
    prompt = served.script(*REFUND)
    folder = await installed("ai-sdk-openai", AI_SDK)
    printed = await run_node(
        folder, SUPPORT / "ai_sdk_openai.mjs", served.door.url, served.door.tokens["ada"], mode, prompt
    )
    [waiting, done, second] = _lines(printed)
    assert (waiting["text"], waiting["parts"]) == ("Let me see.", ["text", "tool-call", "tool-approval-request"])
    assert (done["text"], done["parts"]) == ("Given back.", ["tool-call", "tool-result", "text"])
    assert (second["text"], second["parts"]) == ("Bye.", ["text"])
    assert [each["finish"] for each in (waiting, done, second)] == ["stop", "stop", "stop"]
    assert _texts_of_last_request(served, prompt) == [prompt, "Let me see.", "Given back.", "Thanks."]
    assert len(served.lab.model.requests_of(MODEL, run=prompt)) == 3


@pytest.mark.parametrize("mode", ["plain", "stream"])
async def test_a_call_that_has_not_ended_has_no_result_in_the_ai_sdk(served: Served, mode: str) -> None:
    """The provider takes each `mcp_call` for a result. A sub-agent's call runs on while the sub-agent waits for a person."""
    prompt = served.script(*DELEGATE)
    folder = await installed("ai-sdk-openai", AI_SDK)
    printed = await run_node(
        folder, SUPPORT / "ai_sdk_openai.mjs", served.door.url, served.door.tokens["ada"], mode, prompt, "manager"
    )
    [waiting, done, second] = _lines(printed)
    assert (waiting["parts"], waiting["results"]) == (["text", "tool-call", "tool-approval-request"], [])
    assert (done["text"], done["results"]) == ("It is done.", [["mcp.seller", "Given back."]])
    assert (second["text"], second["results"]) == ("Bye.", [])


@pytest.mark.parametrize("mode", ["plain", "stream"])
async def test_openai_agents_approves_and_continues(served: Served, mode: str) -> None:
    """Its items come back whole."""
    prompt = served.script(*REFUND)
    command = ["uv", "run", "-q", "--no-project", "--python", "3.11", "--with", OPENAI_AGENTS, "python"]
    program = str(SUPPORT / "openai_agents_client.py")
    process = await asyncio.create_subprocess_exec(
        *command, program, served.door.url, served.door.tokens["ada"], mode, prompt,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    [first, second] = _lines(out.decode())
    assert (first["text"], first["asked"]) == ("Given back.", ["refund"])
    assert (second["text"], second["asked"]) == ("Bye.", ["refund"])
