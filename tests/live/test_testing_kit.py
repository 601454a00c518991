"""The kit on the embedded server, and that a run without one is the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mulligan import Call, Say
from mulligan.testing import AgentRun, Model, run_agent
from mulligan.testing.plugin import AgentsOnTemporal, agents_on_temporal
from tests.support.shop import shop

__all__ = ["agents_on_temporal"]

PAGE = Path(__file__).parents[2] / "docs/testing.md"


def model() -> Model:
    return Model(
        Say("Let me see.", calls=[Call("search_orders", {"client": "Ada"}), Call("click", "{'element': '#a'}")]),
        Say(calls=[Call("flaky"), Call("clik"), Call("give", {"what": "circular"})]),
        Say(calls=[Call("search_orders", {"customer": "Ada"})]),
        "done",
    )


def seen(run: AgentRun) -> tuple[object, ...]:
    assert run.result is not None
    spans = sorted((span.name, span.status, str(span.attributes.get("mulligan.recovered"))) for span in run.spans)
    return run.result.model_dump(exclude={"trace_id"}), run.steps, run.messages, spans


async def test_with_and_without_a_server(agents_on_temporal: AgentsOnTemporal) -> None:
    """Steps, messages, result and spans are equal."""
    on_server = await agents_on_temporal.run_async(shop, "Go.", model=model())
    assert seen(on_server) == seen(await run_agent(shop, "Go.", model=model()))


def test_the_page_is_run(tmp_path: Path) -> None:
    """As a user would: the plugin in a conftest.py of theirs."""
    block = next(
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "agents_on" in text
    )
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["mulligan.testing.plugin"]\n')
    (tmp_path / "test_page.py").write_text(re.sub(r"pytest_plugins.*\n", "", block))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
