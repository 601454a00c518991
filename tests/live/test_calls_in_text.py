"""Models without native tool calls, on a server. Which texts are calls: tests/unit/test_runs_of_calls_in_text.py."""

from __future__ import annotations

from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Failure, Turn
from tests.support.shop_agents import RAN

FENCED = 'I look.\n```json\n{"action": "click", "action_input": {"selector": "#a"}}\n```'


async def test_a_server_that_rejects_tools_gets_calls_and_results_as_text(lab: Lab) -> None:
    """The request is repeated in text at once, as are all later ones: calls as they were written, results as user messages."""

    def script(request: dict[str, object], nth: int) -> Turn:
        if "tools" in request:
            return Turn(failure=Failure(400, {"error": {"message": "this model does not support tools"}}))
        return [Turn(text=FENCED), DONE][nth]

    ran = await lab.run(script, agent="wordy")
    assert (ran.result["output"], ran.result["steps"], len(RAN[ran.id])) == ("done", 2, 1)
    assert [request.status for request in ran.requests] == [400, 200, 200]
    system, prompt, said, result = ran.requests[-1].json["messages"]
    assert (system["role"], prompt["content"]) == ("system", "Go.")
    assert '"name": "click", "arguments": {"selector": "#a"}' in said["content"]
    assert (result["role"], result["content"]) == ("user", "Result of click:\nclicked #a")
