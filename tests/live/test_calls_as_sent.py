"""The calls that a model reads of its earlier answers, in real requests: as they were executed, and never in a form that is no JSON."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from mulligan.client.origins.resume_run import resume_run
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.calls_in_requests import CALLS, SENT, calls_in
from tests.support.compaction_agents import PROMPT, READ, is_summing_up, reading
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN


async def test_a_provider_is_sent_the_calls_that_were_executed(lab: Lab) -> None:
    """The next request, those after it, and those of a run that resumes it. The steps have what the model wrote.

    All APIs: tests/unit/test_calls_of_each_api.py.
    """
    ran = await lab.run([Turn(calls=CALLS), call("now"), DONE], max_steps=2)
    assert ran.result["status"] == "max_steps"
    await lab.look(await resume_run(lab.client, ran.id, max_steps=9))
    requests = lab.model.requests_of(ran.id)
    for request, sent in zip(requests, [[], SENT, [*SENT, ("now", {})]], strict=True):
        assert [*calls_in(request.json)] == sent
        assert "invalid_json" not in json.dumps(request.json)
    executed = [arguments.get("selector") for _, arguments in RAN[ran.id]]
    assert sorted(filter(None, executed)) == ["#a", "#b", "#c", "#d", "#g"]
    steps = [(made["raw_arguments"], [repair["by"] for repair in made["repairs"]]) for made in ran.calls[: len(CALLS)]]
    assert [raw for raw, _ in steps] == [raw for _, raw in CALLS]
    assert [repairs for _, repairs in steps] == [
        ["json:single_quotes+trailing_commas"],
        ["name", "json:code_fence"],
        ["bare_value"],
        ["fix"],
        ["name"],
        [],
        [],
        [],
    ]
    texts = [made["result"]["text"] for made in ran.calls]
    assert "You sent: {'selector': '#e" in texts[5]
    assert "You sent: {'selector': '#f'}" in texts[6]
    assert "no tool `clik`" in texts[6]


async def test_repaired_calls_stay_so_through_compactions_and_in_what_summaries_are_made_of(lab: Lab) -> None:
    queue, script = f"sent-{uuid.uuid4().hex[:6]}", reading(12)

    def spelled(request: dict[str, Any], nth: int) -> Turn:
        turn = script(request, nth)
        return replace(turn, calls=[(each[0], repr(json.loads(each[1]))) for each in turn.calls])

    async with running_worker(lab.client, load(["tests.support.compaction_agents"]), lab.telemetry, queue):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run(spelled, agent="page_reader", prompt=PROMPT, max_steps=50)
    assert [number for number, _ in READ[ran.id]] == [*range(1, 13)]
    assert ran.result["repairs"] == 12
    assert sum(is_summing_up(request.json) for request in ran.requests) > 1
    for request in ran.requests:
        assert "{'number'" not in json.dumps(request.json)
        assert all(arguments.keys() == {"number"} for _, arguments in calls_in(request.json))
