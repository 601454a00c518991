"""Skills on a real server: a deploy changes a skill while a run that began with it waits."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from mulligan import Agent, Skills, tool
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.promise.test_people import pending
from tests.support.lab import DONE, Lab, call


@tool(needs_approval=True)
def send(text: str) -> str:
    """Send a text."""
    return f"sent: {text}"


def deployed(root: Path, name: str, description: str, text: str) -> Agent:
    (root / name).mkdir(exist_ok=True)
    (root / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n{text}")
    return Agent(name="clerk", model="openai:m", tools=[send], features=[Skills(root)])


async def test_a_run_reads_the_skills_that_it_began_with_or_a_sentence(lab: Lab, tmp_path: Path) -> None:
    """The requests keep their instructions; a skill that has changed is not read, and one that has not is."""
    deployed(tmp_path, "taxes", "How taxes are filed.", "On paper.")
    before = deployed(tmp_path, "mail", "How to write.", "Be polite.")
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"skills-{uuid.uuid4().hex[:6]}")
    mail, taxes = (("read_skill", json.dumps({"name": name})) for name in ("mail", "taxes"))
    turns = [call(*mail, "a"), call("send", '{"text": "Hi"}', "s"), call(*mail, "b"), call(*taxes, "c"), DONE]
    async with running_worker(at.client, load_agents([before], []), at.telemetry, at.task_queue):
        handle = await at.start(turns, agent="clerk", api="openai")
        await pending(handle)
    after = deployed(tmp_path, "mail", "How to shout.", "Be loud.")
    async with running_worker(at.client, load_agents([after], []), at.telemetry, at.task_queue):
        await handle.execute_update("decide", {"call_id": "s", "decision": "approve"})
        ran = await at.look(handle)
        later = await at.run([call(*mail, "d"), DONE], agent="clerk", api="openai")
    texts = [each["result"]["text"] for each in ran.calls]
    assert texts[0].endswith("Be polite.")
    assert texts[1] == "sent: Hi"
    assert texts[2].startswith("The skill `mail` was changed after this run had begun, so it is not read.")
    assert ran.calls[2]["result"]["error"]["kind"] == "tool_error"
    assert texts[3].endswith("On paper.")
    assert {request.json["instructions"] for request in ran.requests} == {
        before_text := ran.requests[0].json["instructions"]
    }
    assert "How to write." in before_text
    assert later.calls[0]["result"]["text"].endswith("Be loud.")
    assert "How to shout." in later.requests[0].json["instructions"]
