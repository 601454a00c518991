"""docs/coming-from.md: Mulligan's agent does what the page says, and the others' code runs with the versions that the page names."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mulligan import Call, Decide, Pending, Say
from mulligan.testing import ScriptedModel, run_agent, when_told

SECTIONS = dict(
    re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)",
        (Path(__file__).parents[2] / "docs/coming-from.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
OTHERS = ("From the OpenAI Agents SDK", "From pydantic-ai", "From LangGraph")


def blocks(title: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", SECTIONS[title], re.DOTALL)


async def test_mulligans_agent_looks_up_asks_a_person_and_answers_with_a_type() -> None:
    agent_code, client_code = blocks("With Mulligan")
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(agent_code, "docs/coming-from.md", "exec", dont_inherit=True), page)
    exec(compile(client_code, "docs/coming-from.md", "exec", dont_inherit=True), page)
    model = ScriptedModel(
        Say(calls=[Call("order_status", {"order_id": 8})]),
        when_told("There is no order 8.", Say(calls=[Call("order_status", {"order_id": 7})])),
        when_told("lost", Say(calls=[Call("refund", {"order_id": 7, "euros": 12.5})])),
        when_told("Paid 12.5 euros.", Say(calls=[Call("Answer", {"text": "You get it back.", "refunded": 12.5})])),
    )

    def ada(wait: Pending) -> Decide:
        assert wait.tool == "refund"
        return Decide(call_id=wait.call_id, decision="approve", by="Ada")

    run = await run_agent(page["support"], "My order is lost.", model=model, person=ada)
    assert run.output.model_dump() == {"text": "You get it back.", "refunded": 12.5}


@pytest.mark.parametrize("title", OTHERS)
def test_the_others_agents_are_made_with_the_versions_that_the_page_names(title: str, tmp_path: Path) -> None:
    """In an environment of their own; no model is called."""
    packages = re.findall(r"`([a-z-]+(?:\[\w+\])?==[\d.]+)`", SECTIONS[title])
    assert packages
    [code] = blocks(title)
    (tmp_path / "theirs.py").write_text(f"{code}\n\nassert callable(main)\nprint(support.name or 'made')\n")
    kept = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    with_packages = [word for package in packages for word in ("--with", package)]
    ran = subprocess.run(
        ["uv", "run", "--no-project", "--isolated", *with_packages, "python", "theirs.py"],
        cwd=tmp_path, env=kept | {"OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
