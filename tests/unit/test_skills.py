"""`Skills`: what the model is told, what it may read, and which folders are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Call, DeclarationError, Say, Skills, tool
from mulligan.features.skills import PIECE
from mulligan.testing import ScriptedModel, run_agent

HEAD = "---\nname: {name}\ndescription: >-\n  How it\n  is done.\n---\n"


def write(root: Path, name: str = "mail", text: str = "Be polite.", head: str = HEAD, **files: str | bytes) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(head.replace("{name}", name) + text)
    for file, content in files.items():
        path = folder / file.replace("_", ".", 1)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def agent(path: Any) -> Agent:
    return Agent(name="clerk", model="scripted:test", instructions="You write.", features=[Skills(path)])


async def read(root: Path, *calls: dict[str, Any]) -> list[str]:
    turns = [Say(calls=[Call("read_skill", arguments)]) for arguments in calls]
    run = await run_agent(agent(root), "Go.", model=ScriptedModel(*turns, "Done."))
    return [call.result.text if call.result else "" for call in run.calls]


async def test_the_instructions_list_skills_and_the_model_reads_them(tmp_path: Path) -> None:
    write(write(tmp_path, notes_md="Dear all"), "taxes")
    run = await run_agent(agent(tmp_path), "Go.", model=ScriptedModel("Done."))
    assert run.instructions.startswith("You write.\n\n# Skills")
    assert run.instructions.endswith("- `mail`: How it is done.\n- `taxes`: How it is done.")
    texts = await read(
        tmp_path, {"name": "mail"}, {"name": "mail", "file": "notes.md"}, {"name": "mail", "file": "./notes.md"}
    )
    assert texts[0].endswith("Be polite.\n[Its other files: `notes.md`]")
    assert texts[1:] == ["Dear all", "Dear all"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "post"}, "There is no such skill. The skills are: `mail`."),
        ({"name": "mail", "file": "../secret.txt"}, "The skill `mail` has no such file."),
        ({"name": "mail", "file": "/etc/passwd"}, "The skill `mail` has no such file."),
        ({"name": "mail", "file": "data.bin"}, "The file is not text: it has 4 bytes of binary data."),
    ],
)
async def test_nothing_else_can_be_read(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    write(tmp_path / "skills", data_bin=b"\xff\xfe\x00\x01")
    assert (await read(tmp_path / "skills", arguments))[0].startswith(text)


async def test_a_file_of_100_mb_is_read_in_pieces(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "mail" / "log.txt").open("wb") as file:
        file.write("é".encode() * PIECE)
        file.truncate(100_000_000)
    first, second, last = await read(
        tmp_path,
        {"name": "mail", "file": "log.txt", "start": 1},
        {"name": "mail", "file": "log.txt", "start": PIECE},
        {"name": "mail", "file": "log.txt", "start": 100_000_001},
    )
    assert first.endswith(f"é\n[bytes 1 to {PIECE + 0:,} of 100,000,000; go on with start={PIECE}]")
    assert second.startswith("é")
    assert len(first) < PIECE
    assert last == "\n[bytes 100,000,001 to 100,000,001 of 100,000,000]"


async def test_a_skill_that_has_changed_since_the_run_began_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, notes_md="old")

    @tool
    def deploy() -> str:
        """Deploy."""
        (tmp_path / "mail" / "notes.md").write_text("newer")
        return "Deployed."

    clerk = Agent(name="clerk", model="scripted:test", tools=[deploy], features=[Skills(tmp_path)])
    ask = Say(calls=[Call("read_skill", {"name": "mail"})])
    model = ScriptedModel(ask, Say(calls=[Call("deploy", {})]), ask, "Done.")
    run = await run_agent(clerk, "Go.", model=model)
    texts = [call.result.text for call in run.calls if call.result]
    assert "Be polite." in texts[0]
    assert texts[2].startswith("The skill `mail` was changed after this run had begun")


def test_a_wrong_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    faults: list[tuple[str, str]] = [
        ("no front matter", "has no front matter"),
        ("---\nname: mail\n---\n", "description is missing; it must be a text"),
        ("---\nname: other\ndescription: x\n---\n", "name is 'other'; it must be the folder's name, 'mail'"),
        ("---\n: [\n---\n", "SKILL.md, line 2: the front matter is no YAML"),
        ("---\n- a\n---\n", "SKILL.md, line 2: the front matter has no fields"),
        ("---\nname: mail\ndescription: " + "x" * 1_025 + "\n---\n", "; it must be a text of 1 to 1,024"),
        ("---\n" + "x: y\n" * 10_000 + "---\n", "or one of more than 16,384 bytes"),
    ]
    for head, fault in faults:
        with pytest.raises(DeclarationError, match="Skills: ") as caught:
            agent(write(tmp_path, head=head))
        assert fault in str(caught.value)
    for path, fault in ((tmp_path / "none", "is not a folder"), (5, "path is 5")):
        with pytest.raises(DeclarationError, match=fault):
            agent(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DeclarationError, match="contains 0 skills"):
        agent(tmp_path / "empty")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside.txt", "/etc"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    write(tmp_path / "skills")
    os.symlink(target, tmp_path / "skills" / "mail" / "link")
    with pytest.raises(DeclarationError, match="is a link that leads out of the skill's folder"):
        agent(tmp_path / "skills")


def test_a_tool_of_its_own_cannot_have_the_name(tmp_path: Path) -> None:
    @tool
    def read_skill() -> str:
        """Read."""
        return ""

    with pytest.raises(DeclarationError, match="'read_skill' is the name of a tool that Skills adds; rename yours"):
        Agent(name="clerk", model="scripted:test", tools=[read_skill], features=[Skills(write(tmp_path))])
