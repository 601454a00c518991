"""Repairs by a second model and resources, on a server."""

from __future__ import annotations

import uuid

from mulligan import Agent, ask_model, tool
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.shop_agents import RAN

WRONG = '{"payment": {"to": "AT12345", "amount": 3}}'
RIGHT = '{"payment": {"iban": "AT12345", "amount": 3}}'


async def test_a_second_model_repairs_a_call(lab: Lab) -> None:
    """Whatever else it answers: tests/unit/test_repairing_models.py."""
    lab.model.script("mender", [Turn(calls=[("pay", RIGHT)])])
    before = len(lab.model.requests_of("mender"))
    ran = await lab.run([call("pay", WRONG), DONE], agent="mended_by_model")
    assert len(lab.model.requests_of("mender")) - before == 1
    [chat] = [span for span in ran.spans_of("chat mender") if "mulligan.repaired_call.id" in span.attributes]
    assert chat.status == "UNSET"
    assert RAN[ran.id] == [("pay", {"iban": "AT12345", "amount": 3.0})]


async def test_tools_get_the_resources_of_the_worker_and_the_metadata_of_the_run(lab: Lab) -> None:
    """They are opened once for each worker. Both coroutine tools and thread tools get them."""
    turn = Turn(calls=[("where", "{}"), ("where_by_thread", '{"kind": "street"}')])
    ran = await lab.run([turn, DONE], agent="resourceful", metadata={"city": "Graz"})
    assert [each["result"]["text"] for each in ran.calls] == ["on the corner, Graz", "on the corner"]


async def test_a_repairing_model_that_returned_429_is_not_asked_again(lab: Lab) -> None:
    """It returns 429 once. While it limits this worker, calls that it could repair are returned to the model as errors."""
    name, mender = (f"{of}-{uuid.uuid4().hex[:8]}" for of in ("limited", "mender"))

    @tool(fix=ask_model(f"openai-chat:{mender}"))
    def weigh(thing: str) -> str:
        """Weigh something."""
        return f"{thing}: 2 kg"

    lab.model.script(mender, [Turn(failure=Failure(status=429, headers={"Retry-After": "50"}))])
    lab.model.script(name, [call("weigh", '{"thong": "ham"}'), call("weigh", '{"thong": "rye"}'), DONE])
    agent = Agent(name="weigher", model=f"openai-chat:{name}", tools=[weigh])
    async with running_worker(lab.client, load_agents([agent], []), lab.telemetry, name):
        given = {"agent": agent.name, "prompt": "Weigh it."}
        ran = await lab.look(await lab.client.start_workflow("AgentWorkflow", given, id=name, task_queue=name))
    assert [each["result"]["error"]["kind"] for each in ran.calls] == ["invalid_arguments"] * 2
    assert len(lab.model.requests_of(mender)) == 1
    held_back = lab.otlp.metrics("mulligan.model_calls.throttled")[-1]
    by_model = {point.attributes["gen_ai.request.model"]: point.value for point in held_back.points}
    assert by_model[mender] == 1
