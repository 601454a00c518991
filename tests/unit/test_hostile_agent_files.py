"""A folder of agents in which others have written: whatever stands there, the other agents are served, and nothing waits or leaks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from pydantic import JsonValue

from mulligan import Agent, DeclarationError, Guarded, InvalidRunInputError, RunInput, Skills
from mulligan.activities.agent_files import agent_file
from mulligan.activities.agent_files.agent_file import parse_agent_file
from mulligan.activities.agent_files.labels import MOST_LABELS_BYTES, parse_labels
from mulligan.feature import Needs
from mulligan.schema.open_file import read_bytes
from mulligan.schema.yaml_fields import FileFault
from mulligan.testing import ScriptedModel, run_agent
from mulligan.worker import agent_folder
from mulligan.worker.agent_folder import AgentFolder
from mulligan.worker.loading import load
from tests.unit.test_yaml_fields import COSTLY

RIGHT = "---\nmodel: openai:m\n---\nYou are right.\n"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("gone")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**13)


def long_text(path: Path) -> None:
    path.write_text(RIGHT + "x" * 200_000)


def other_encoding(path: Path) -> None:
    path.write_bytes(RIGHT.encode("utf-16"))


ODD: Sequence[Callable[[Path], None]] = (
    Path.mkdir, fifo, endless, terminal, circle, dangling, huge, long_text, other_encoding,
)  # fmt: skip


def folder_of(path: Path, **code: Any) -> AgentFolder:
    module = ModuleType("code_of_worker")
    vars(module).update(code, __file__="code.py")
    sys.modules["code_of_worker"] = module
    return AgentFolder(path, load(["code_of_worker"]).registry, ())


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["odd.md", "labels.toml"])
async def test_the_other_agents_are_served(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    (tmp_path / "right.md").write_text(RIGHT)
    make(tmp_path / name)
    folder = folder_of(tmp_path)
    await folder.load()
    assert folder.served == ["right"]
    assert len(folder.problems) == 1
    assert folder.problems[0].startswith(f"{tmp_path / name}, line ")


@pytest.mark.parametrize("name", COSTLY)
async def test_the_version_before_stays_in_service(tmp_path: Path, name: str) -> None:
    (tmp_path / "right.md").write_text(RIGHT)
    (tmp_path / "other.md").write_text(RIGHT)
    folder = folder_of(tmp_path)
    await folder.load()
    (tmp_path / "other.md").write_text(f"---\n{COSTLY[name]}\n---\nYou are wrong.\n")
    (tmp_path / "right.md").write_text(RIGHT + "And newer.")
    await folder.load()
    assert folder.served == ["other", "right"]
    assert len(folder.problems) == 1
    assert folder.problems[0].startswith(f"{tmp_path / 'other.md'}, line ")
    assert "The version before" in folder.problems[0]
    (tmp_path / "other.md").write_text(RIGHT)
    await folder.load()
    assert folder.problems == []


async def test_a_wrong_file_is_told_once_and_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list[str]()

    def parse(name: str, data: bytes) -> agent_file.AgentFile:
        parsed.append(name)
        return parse_agent_file(name, data)

    monkeypatch.setattr(agent_folder, "parse_agent_file", parse)
    said = list[str]()
    (tmp_path / "wrong.md").write_text(f"---\n{COSTLY['open lists']}\n---\n")
    (tmp_path / "right.md").write_text(RIGHT)
    folder = folder_of(tmp_path)
    folder._say = said.append
    for _ in range(3):
        await folder.load()
    assert (sorted(parsed), len(said)) == (["right", "wrong"], 1)


async def test_looking_at_a_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    folder = folder_of(tmp_path)
    await folder.load()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await folder.load()
    assert len(os.listdir("/proc/self/fd")) == before


class Reading(Guarded):
    """A feature that reads files, and notes on which threads."""

    threads: ClassVar[list[threading.Thread]] = []

    @property
    def name(self) -> str:
        """That of a feature of Mulligan's."""
        return "guarded"

    def faults(self, agent: Agent) -> dict[str, bool]:
        self.threads.append(threading.current_thread())
        return super().faults(agent)

    def needs(self, models: Sequence[str]) -> Needs:
        return Needs(instructions=self._instructions)

    def _instructions(self) -> str:
        self.threads.append(threading.current_thread())
        return "Read."

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        self.threads.append(threading.current_thread())
        return super().facts(models)


async def test_files_are_parsed_and_read_off_the_event_loop(tmp_path: Path) -> None:
    reading = Reading()
    (tmp_path / "support.md").write_text("---\nmodel: openai:m\nfeatures: [reading]\n---\nHi\n")
    folder = folder_of(tmp_path, reading=reading)
    await folder.load()
    assert folder.problems == []
    loop_thread = threading.current_thread()
    assert reading.threads
    assert loop_thread not in reading.threads
    clerk = Agent(name="clerk", model="openai:m", features=[reading])
    reading.threads.clear()  # it was declared here
    run = await run_agent(clerk, "Go.", model=ScriptedModel("Done."))
    assert run.instructions == "Read."
    assert reading.threads[-2:].count(loop_thread) == 0


VERSION = '"00000000"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'.'.join(['a'] * 90_000)} = 1", "line 1: it has 180,003 characters; the limit for a line is 1,000"),
        (f"[{'.'.join(['a'] * 90_000)}]", "line 1: it has 180,001 characters"),
        ("a = [" + "\n[" * 9_000, "line 1: it is nested too deeply"),
        (f"a = {'{a=' * 330}", "line 1: it is nested too deeply"),
        ('"""\n[' + " " * 900, "line 1: it is no TOML"),
        ('a = """\n' + ("[" + " " * 900 + "\n") * 200 + '"""', 'line 1: "a" is no table'),
        ("[s]\n" + "".join(f"a{number} = {VERSION}\n" for number in range(10_000)), "line 1: 's' has 10,000 labels; the limit is 100"),
        (f"[a]\nb = {VERSION}\n[c]\nb = {VERSION}\nd = 1", "line 5: 'd' is 1; it must be a digest"),
        (f"[a]\nb = {VERSION}\n[c.d]\nversion = 1", "line 3: 'd' is {'version': 1}; it must be a digest"),
        (f'[a]\nb = {VERSION}\n["c"]\n"d" = 1', "line 4: 'd' is 1; it must be a digest"),
        ("a.b = 1", "line 1: 'b' is 1; it must be a digest"),
    ],
    ids=range(11),
)  # fmt: skip
def test_labels_are_bounded_and_have_lines(text: str, said: str) -> None:
    with pytest.raises(FileFault) as caught:
        parse_labels(text)
    assert str(caught.value).startswith(said)


def test_labels_take_no_seconds() -> None:
    text = "\n".join(f"a{number}{'.a' * 490} = 1" for number in range(190))
    begun = time.process_time()
    with pytest.raises(FileFault):
        parse_labels(text)
    assert len(text) > 0.9 * MOST_LABELS_BYTES
    assert time.process_time() - begun < 5
    with pytest.raises(FileFault, match="characters"):
        parse_labels(f"a{'.a' * 4_900} = 1")  # twenty of them take ten times as long


def test_values_of_the_input_cannot_make_the_instructions_of_a_run_endless() -> None:
    file = parse_agent_file("support", b"---\nmodel: openai:m\n---\n" + b"{{ prompt }}" * 16_000)
    assert file.instructions.write(RunInput(agent="support", prompt="Hi")) == "Hi" * 16_000
    with pytest.raises(
        InvalidRunInputError, match="have 16,000,000 characters with the values of this input; the limit is 2,000,000"
    ):
        file.instructions.write(RunInput(agent="support", prompt="x" * 1_000))


def skill(folder: Path) -> Path:
    (folder / "mail").mkdir()
    (folder / "mail/SKILL.md").write_text("---\nname: mail\ndescription: d\n---\n")
    return folder / "mail"


def declare(folder: Path) -> str:
    try:
        Agent(name="clerk", model="openai:m", features=[Skills(folder)])
    except DeclarationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (circle, "is a link that leads out of the skill's folder"),
        (endless, "is a link that leads out of the skill's folder"),
        (huge, "has more than 1,000,000,000 bytes; keep large files elsewhere"),
        (fifo, ""),
        (Path.mkdir, ""),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_an_odd_file_of_a_skill_is_refused_or_left_out(tmp_path: Path, make: Any, said: str) -> None:
    make(skill(tmp_path) / "odd")
    told = declare(tmp_path)
    assert said in told
    assert bool(said) == bool(told)


@pytest.mark.parametrize("make", [Path.mkdir, fifo, circle, huge, other_encoding], ids=lambda make: make.__name__)
def test_an_odd_file_in_the_place_of_the_skill_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = skill(tmp_path)
    (folder / "SKILL.md").unlink()
    make(folder / "SKILL.md")
    assert "Skills: " in declare(tmp_path)


def test_a_skill_of_many_folders_or_of_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    odd = os.path.join(os.fsencode(folder), b"\xff.md")
    Path(os.fsdecode(odd)).write_text("x")
    assert "has a name that is not UTF-8; rename it" in declare(tmp_path)
    os.unlink(odd)
    for number in range(1_001):
        (folder / str(number)).mkdir()
    assert "has more than 1,000 files" in declare(tmp_path)


def test_a_file_that_grows_is_read_as_far_as_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert read_bytes(tmp_path / "a", 10) == b"x" * 11
    assert read_bytes(tmp_path / "a", 100) == b"x" * 100
    os.mkfifo(tmp_path / "b")
    with pytest.raises(OSError, match="it is no regular file"):
        read_bytes(tmp_path / "b", 10)
