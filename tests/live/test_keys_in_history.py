"""A key that an endpoint quotes is nowhere: not in the run's history, its spans, the worker's log, or what clients read."""

from __future__ import annotations

import json
import uuid

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import Agent
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.lab import Lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn

KEY = "sk-proj-very-secret-4711"
QUOTED = {"error": {"message": f"bad key {KEY}", "type": KEY, "code": None}}
PLACES = {
    "error with 200": Turn(failure=Failure(200, QUOTED)),
    "error with 403": Turn(failure=Failure(403, QUOTED, headers={"x-request-id": KEY})),
    "error in a stream": Turn(events=[QUOTED]),
    "no JSON": Turn(failure=Failure(200, f"{KEY} is wrong")),
    "answer": Turn(text=f"Your key is {KEY}.", model=KEY),
}


@pytest.mark.parametrize("api", ["openai", "openai-chat", "anthropic", "google"])
async def test_a_key_that_an_endpoint_quotes_is_nowhere(
    lab: Lab, api: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spans carry content here."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    queue = f"keys-{uuid.uuid4().hex[:6]}"
    async with OpenAIServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, KEY if value == "test-key" else value)
        telemetry = Telemetry()
        agent = Agent(name="keys", model=f"{api}:none", model_attempts=1)
        told = ""
        async with running_worker(lab.client, load_agents([agent], []), telemetry, queue):
            for number, turn in enumerate(PLACES.values()):
                model = f"m{number}"
                server.script(model, [turn])
                run_input = {"agent": "keys", "prompt": "Go.", "model": f"{api}:{model}"}
                handle = await lab.client.start_workflow(
                    "AgentWorkflow", run_input, id=f"{queue}-{model}", task_queue=queue
                )
                try:
                    told += json.dumps(await handle.result())
                except WorkflowFailureError as failure:
                    told += str(failure.cause)
                told += json.dumps([await handle.query(name, args=[0, 100]) for name in ("steps", "messages")])
                for event in (await handle.fetch_history()).events:
                    told += event.SerializeToString().decode(errors="replace")
        telemetry.shutdown()
    for text in (told, str(lab.otlp.spans()), caplog.text):
        assert KEY not in text
        assert "bad key [key]" in text
    assert "Your key is [key]." in told
    assert "Your key is [key]." in str(lab.otlp.spans())
