"""Two endpoints in one worker, with keys of their own: a fallback between them, and a key that appears nowhere."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from mulligan import Agent, Model, RunInput, tool
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_server import Failure, OpenAIServer, Turn

CANARY, HEADER = "sk-canary-of-llama-4711", "canary-of-the-header-4711"
DOWN = Turn(failure=Failure(status=503, body=f"overloaded, your key is {CANARY}, your header {HEADER}"))


@tool
def weigh(thing: str) -> str:
    """Weigh something."""
    return f"{thing}: 2 kg"


async def test_a_fallback_reaches_the_other_endpoint_with_its_own_key_and_no_key_is_recorded(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first model is declared in code and is down; the second is the operator's, and a run's input names it as well."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("LLAMA_KEY", CANARY)
    monkeypatch.setenv("GATE", HEADER)
    monkeypatch.setenv("SPARE_KEY", "key-of-spare-4711")
    async with OpenAIServer() as local, OpenAIServer() as spare:
        local.script("llama3", [DOWN] * 9)
        spare.script("llama3", [call("weigh", '{"thing": "ham"}'), DONE])
        file = tmp_path / "endpoints.toml"
        file.write_text(f'[spare]\nbase_url = "{spare.base_url}"\napi_key_env = "SPARE_KEY"\n')
        monkeypatch.setenv("MULLIGAN_ENDPOINTS", str(file))
        llama = Model(
            "openai-chat@local:llama3",
            base_url=local.base_url,
            api_key_env="LLAMA_KEY",
            headers={"X-Gate": "${GATE}"},
        )
        agent = Agent(name="weigher", model=[llama, "openai-chat@spare:llama3"], tools=[weigh], model_attempts=2)
        queue = f"endpoints-{uuid.uuid4().hex[:6]}"
        async with running_worker(lab.client, load_agents([agent], []), lab.telemetry, queue):

            async def start(number: int, **more: object) -> Ran:
                given = {"agent": "weigher", "prompt": "Weigh it.", **more}
                run_id = f"{queue}-{number}"
                return await lab.look(
                    await lab.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=queue)
                )

            ran = await start(1)
            assert (ran.result["status"], ran.result["output"]) == ("completed", "done")
            assert [step["model"] for step in ran.steps] == ["openai-chat@spare:llama3"] * 2
            assert [len(each.requests) for each in (local, spare)] == [3, 2]  # once without streaming
            assert {each.headers["authorization"] for each in local.requests} == {f"Bearer {CANARY}"}
            assert {each.headers["x-gate"] for each in local.requests} == {HEADER}
            assert {each.headers["authorization"] for each in spare.requests} == {"Bearer key-of-spare-4711"}
            chats = [span for span in ran.spans if span.name.startswith("chat ")]
            ports = [span.attributes["server.port"] for span in chats]
            assert sorted(ports) == sorted([int(each.base_url.split(":")[2][:-3]) for each in (local, spare)] * 2)
            assert {span.attributes["server.address"] for span in chats} == {"127.0.0.1"}
            assert [span.status for span in chats].count("ERROR") == 2

            # A run's input names the operator's endpoint, as a text or as a Model; one that is not known is refused.
            named = await start(2, model="openai-chat@spare:llama3")
            assert named.result["output"] == "done"
            assert RunInput(agent="weigher", prompt="p", model=llama).model == "openai-chat@local:llama3"
            unknown = await start(3, model="openai-chat@other:llama3")
            assert unknown.error is not None
            assert "does not know the endpoint 'other'; it knows: local, spare" in str(unknown.error)

            runs = (ran, named, unknown)
            events = [event for each in runs async for event in each.handle.fetch_history_events()]
            recorded = "".join((*map(str, events), str(ran), str(named), str(unknown), caplog.text))
            assert "openai-chat@local:llama3" in recorded
            assert "your key is [key], your header [key]" in str(ran.spans)
            for secret in (CANARY, HEADER, "key-of-spare-4711"):
                assert secret not in recorded
