"""`run_agent` with an agent that is a file: as a worker serves its folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mulligan import Call, DeclarationError, Say
from mulligan.testing import ScriptedModel, run_agent

PARTS = ["tests.support.agent_file_parts"]
TEXT = "---\nmodel: openai:nobody\ntools: [look_up]\n---\nYou help {{ metadata.shop }}."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "support.md").write_text(TEXT)
    return tmp_path / "support.md"


def asks() -> ScriptedModel:
    return ScriptedModel(Say(calls=[Call("look_up", {"order": 7})]), "Done.")


async def test_an_agent_of_a_file_runs_in_a_test(file: Path) -> None:
    """With the tools and the resources of the modules, its version, and values of the input in its instructions."""
    for path in (file, str(file)):
        run = await run_agent(path, "Where is it?", model=asks(), load=PARTS, metadata={"shop": "shoes"})
        assert run.instructions == "You help shoes."
        assert [call.result.text for call in run.calls if call.result] == ["order 7 is on the shelf"]
        assert run.output == "Done."
        assert {step.version for step in run.steps} == {hashlib.sha256(TEXT.encode()).hexdigest()}
    fake = await run_agent(file, "?", model=asks(), load=PARTS, resources="the floor", metadata={"shop": "shoes"})
    assert [call.result.text for call in fake.calls if call.result] == ["order 7 is on the floor"]


async def test_a_test_may_choose_a_label_of_the_folder(file: Path) -> None:
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    (file.parent / "labels.toml").write_text(f'[support]\nstable = "{digest}"')
    model = ScriptedModel("Done.")
    run = await run_agent(file, "?", model=model, load=PARTS, metadata={"shop": "shoes"}, version="stable")
    assert [step.label for step in run.steps] == ["stable"]


async def test_a_wrong_file_is_an_error_with_its_line(file: Path) -> None:
    file.write_text(TEXT.replace("look_up", "look_op"))
    with pytest.raises(
        DeclarationError, match=r"support\.md, line 3: no loaded module declares a tool named 'look_op'"
    ):
        await run_agent(file, "?", model=asks(), load=PARTS)
    with pytest.raises(DeclarationError, match=r"no such agent in the folder"):
        await run_agent(file.with_name("sales.md"), "?", model=asks(), load=PARTS)
    with pytest.raises(DeclarationError, match="is not there; create it"):
        await run_agent(file.parent / "none" / "support.md", "?", model=asks(), load=PARTS)
