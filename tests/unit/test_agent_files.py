"""Agents as files: what may stand in one, the line of each fault, and what the values of a run become in the instructions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mulligan import Call, ClearToolResults, Compaction, Guarded, InvalidRunInputError, RunInput, Say, Skills
from mulligan.activities.agent_files.agent_file import AgentFile, digest_of, parse_agent_file
from mulligan.activities.agent_files.agent_versions import AgentVersions
from mulligan.activities.agent_files.build_agent import build_agent
from mulligan.activities.agent_files.front_matter import (
    FEATURES_IN_FILES,
    MOST_SECONDS,
    FrontMatter,
    ModelSettings,
    front_matter_schema,
)
from mulligan.activities.agent_files.labels import label_of, parse_labels
from mulligan.agent import Agent
from mulligan.client.content_store import configured_content_store
from mulligan.client.stored_files import StorageError
from mulligan.doctor.checks import check_agent_files
from mulligan.durations import as_timedelta
from mulligan.schema.yaml_fields import FileFault
from mulligan.testing import ScriptedModel, run_agent
from mulligan.wire.agent_version import AgentVersion
from mulligan.worker.agent_folder import AgentFolder
from mulligan.worker.loading import LoadedModules, load
from tests.support import agent_file_parts
from tests.support.examples import examples

DIGEST = "0123456789abcdef" * 4


def file_of(front_matter: str, instructions: str = "You help.", name: str = "support") -> AgentFile:
    return parse_agent_file(name, f"---\n{front_matter}\n---\n\n{instructions}\n".encode())


def agent_of(front_matter: str) -> Agent:
    loaded = load(["tests.support.agent_file_parts"])
    return build_agent(file_of(front_matter), loaded.registry.parts, "agents/support.md")


def fault_of(front_matter: str) -> str:
    with pytest.raises(FileFault) as caught:
        agent_of(front_matter)
    return str(caught.value)


def test_a_file_names_what_loaded_modules_declare() -> None:
    agent = agent_of(
        "model: [openai:gpt-5, openai:gpt-5-mini]\ntools: [look_up]\nmcp: [stock]\nhandoffs: [clerk]\nmax_steps: 7\n"
        "max_cost: 2\nmodel_timeout: 9.5\nclient_instructions: ignore\nmodel_settings: {temperature: 0.2, stream: false}\n"
        "features:\n  - house_skills\n  - Guarded\n  - Compaction: {at: 60000}\n    ClearToolResults:"
    )
    assert agent.tools == [agent_file_parts.look_up]
    assert agent.mcp == [agent_file_parts.stock]
    assert (agent.models, agent.handoff_names) == (("openai:gpt-5", "openai:gpt-5-mini"), ("clerk",))
    assert (agent.max_steps, agent.max_cost, agent.model_timeout, agent.client_instructions) == (7, 2, 9.5, "ignore")
    assert agent.model_settings == {"temperature": 0.2, "stream": False}
    assert agent.instructions == "You help."
    assert agent.source == "agents/support.md"
    kinds = {type(each): each for each in agent.features}
    assert set(kinds) == {Guarded, Compaction, ClearToolResults, Skills}
    assert kinds[Compaction] == Compaction(at=60_000)


def test_features_may_stand_there_by_name() -> None:
    assert agent_of("model: openai:m\nfeatures:\n  Guarded: {action: deny}").features == [Guarded("deny")]


@pytest.mark.parametrize(
    ("front_matter", "said"),
    [
        ("tools: [look_up]", 'line 2: "model" is missing'),
        ("model: openai:m\nmax_step: 3", 'line 3: "max_step" is not a field of an agent\'s file; did you mean "max_steps"?'),
        ("model: openai:m\nname: support", 'line 3: "name" is not a field of an agent\'s file; known are model'),
        ("model: openai:m\nfeatures: {options: {}}", 'line 3: "features.options" is not a field of an agent\'s file; did you mean'),
        ("model: openai:m\nfeatures:\n- name: Guarded", 'line 4: "features[0].name" is not a field'),
        ("model: openai:m\nmax_steps: many", 'line 3: "max_steps" is "many", but it must be an integer'),
        ("model: openai:m\nmax_steps: true", 'line 3: "max_steps" is true'),
        ("model: openai:m\nmax_steps: 0", 'line 3: "max_steps" is 0, but it must be at least 1'),
        ("model: openai:m\nmax_steps: 1\nmax_steps: 2", 'line 4: "max_steps" stands there twice'),
        ("model: gpt", "line 2: the model is 'gpt'"),
        ("model: openai:m\ntools:\n  - look_up\n  - look_op", "line 5: no loaded module declares a tool named 'look_op'"),
        ("model: openai:m\ntools: [look_up, look_up]", "line 3: two tools are named 'look_up'"),
        ("model: openai:m\nmcp: [shop]", "line 3: no loaded module declares a MCP server named 'shop'"),
        ("model: openai:m\nfeatures: [Guraded]", "line 3: no loaded module declares a feature named 'Guraded'"),
        ("model: openai:m\nfeatures:\n  - Compaction", "line 4: Compaction"),
        ("model: openai:m\nfeatures:\n  - Compaction: {at: 5}", "line 4: Compaction: at is 5"),
        ("model: openai:m\nfeatures:\n  - Compaction:\n      at: x", "line 5: \"features[0].Compaction.at\" is \"x\""),
        ("model: openai:m\nfeatures:\n  Guarded: {act: deny}", 'line 4: "features.Guarded.act" is not a field'),
        ("model: openai:m\nhandoffs: [support]", "line 3: handoffs names the agent itself"),
        ("model: openai:m\nmodel_timeout: 1000000000000000", 'line 3: "model_timeout" is 1000000000000000'),
        ("model: openai:m\nmodel_patience: 1.0e+300", 'line 3: "model_patience" is 1e+300'),
        ("model: openai:m\nmodel_timeout: 0", 'line 3: "model_timeout" is 0'),
        ("model: openai:m\nmodel_settings: {temperature: .nan}", 'line 3: "model_settings.temperature" is NaN'),
        ("model: openai:m\nfeatures: {Approvals: {timeout: .inf}}", 'line 3: "features.Approvals.timeout" is Infinity'),
        ("model: openai:m\nfeatures: {Background: {timeout: 1.0e+15}}", 'line 3: "features.Background.timeout" is 1000000000000000.0'),
        (f"model: openai:m\nmax_steps: {'9' * 5_000}", "line 3: the number '9999"),
        (f"model: openai:m\nmax_steps: 0x{'9' * 5_000}", "line 3: the number '0x99"),
        ("model: openai:m\nmax_steps: !!int ''", "line 3: '' is no value of its type"),
        ("model: openai:m\nfeatures: [faulty]", "line 1: the agent cannot be built: ZeroDivisionError"),
        ("model: [", "line 3: the front matter is no YAML"),
        ("model: &a x\ntools: [*a]", "line 3: it has an alias"),
        ("model: !!python/object/apply:os.system [ls]", "line 2: "),
        ("- model", "line 2: the front matter has no fields"),
        (f"model: {'[' * 2_000}", "line 2: it has more than 20 levels"),
        (f"model: {'[' * 30}{']' * 30}", "line 2: it has more than 20 levels"),
    ],
)  # fmt: skip
def test_a_fault_has_its_line(front_matter: str, said: str) -> None:
    assert said in fault_of(front_matter)


FIELDS = {*FrontMatter.model_fields} - {"model"}
SCALARS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=9),
    st.sampled_from(["look_up", "house_skills", "Guarded", "Compaction", "openai:m", "clerk", "support", 10**15, 1e300]),
)  # fmt: skip
OPTIONS = st.dictionaries(
    st.sampled_from(sorted(FEATURES_IN_FILES)),
    st.none()
    | st.dictionaries(st.sampled_from(["timeout", "reminder", "at", "limit", "max_calls", "keep_steps"]), SCALARS),
)
SETTINGS = st.dictionaries(st.sampled_from(sorted(ModelSettings.model_fields)), SCALARS)
FRONT_MATTER = st.dictionaries(
    st.sampled_from(sorted(FIELDS)), SCALARS | st.lists(SCALARS | OPTIONS, max_size=3) | OPTIONS | SETTINGS, max_size=4
)
PARTS = load(["tests.support.agent_file_parts"]).registry.parts


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FRONT_MATTER)
def test_any_front_matter_is_an_agent_whose_facts_can_be_pinned_or_a_fault_with_a_line(fields: dict[str, Any]) -> None:
    text = yaml.safe_dump({"model": "openai:m", **fields})
    try:
        file = file_of(text.rstrip("\n"))
        agent = build_agent(file, PARTS, "agents/support.md")
    except FileFault as caught:
        fault = caught
    else:
        for seconds in (agent.model_timeout, agent.model_patience or 0):
            assert 0 <= as_timedelta(seconds).total_seconds() <= MOST_SECONDS
        json.dumps([each.facts(agent.models) for each in agent.features], allow_nan=False)
        json.dumps(agent.model_settings, allow_nan=False)
        return
    assert 1 <= fault.line <= text.count("\n") + 3
    assert str(fault).isprintable()


@settings(max_examples=examples(100), deadline=None)
@given(st.text("!<>&*[]{}:-?|'\"#.0x_e+\n bintofl1a\ud800", max_size=40))
def test_any_yaml_is_a_mapping_or_a_fault_with_a_line(text: str) -> None:
    for value in (text, f"max_steps: {text}", f"max_cost: !!float {text}", f"max_steps: !!int {text}"):
        fields = f"model: openai:m\n{value}".encode("utf-8", "replace").decode()
        line = 1
        try:
            file_of(fields)
        except FileFault as fault:
            line = fault.line
        assert 1 <= line <= len(fields.splitlines()) + 4


@pytest.mark.parametrize(
    "front_matter",
    [
        "mcp:\n  - {name: x, command: [rm, -rf, /]}",
        "mcp:\n  - {name: x, url: 'http://169.254.169.254'}",
        "tools:\n  - {name: x, command: ls}",
        "model_settings: {extra_headers: {Authorization: secret-key}}",
        "model_settings: {api_key: secret-key}",
        "api_key: secret-key",
        "features:\n  - Compaction: {at: 60000, model: {name: 'openai:m', base_url: 'http://evil', api_key_env: PATH}}",
        "features:\n  - Skills: {path: /etc}",
        "features:\n  - Skills",
    ],
)
def test_no_command_address_header_or_key_can_be_written(front_matter: str) -> None:
    said = fault_of(f"model: openai:m\n{front_matter}")
    assert "secret-key" not in said
    assert "line " in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: no front matter"),
        (b"You help.", "line 1: no front matter"),
        (b"---\nmodel: openai:m\nYou", "line 1: the front matter does not end"),
        (b"---\nmodel: openai:m\n---\n\xff", "line 4: the file is no text in UTF-8"),
        (b"---\nmodel: openai:m\n---\na\0", "line 4: the file has a NUL"),
        (b"x" * 200_001, "line 1: the file has 200,001 bytes"),
        (b"---\nmodel: openai:m\n---\n\nHi\n\nSay {{ promt }}", "line 7: `{{ promt"),
        (b"---\nmodel: openai:m\n---\n{{ metadata }}", "line 4: "),
        (b"---\nmodel: openai:m\n---\n{{", "line 4: "),
        (b"---\nmodel: openai:m\n---\n{{ prompt.upper() }}", "line 4: "),
    ],
)
def test_a_file_that_is_none_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(FileFault) as caught:
        parse_agent_file("support", data)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "a/b", "x" * 65, "-x"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(FileFault, match="cannot be an agent's name"):
        file_of("model: openai:m", name=name)


@pytest.mark.parametrize(
    ("front_matter", "is_right"),
    [
        ("model: openai:m", True),
        ("model: [openai:m, openai:n]\nfeatures: [Guarded, {Batch: null}]\nmax_cost: 1.5", True),
        ("model: openai:m\nfeatures: {Guarded: {action: deny}}", True),
        ("tools: []", False),
        ("model: openai:m\ncommand: [ls]", False),
        ("model: openai:m\nmax_steps: 0", False),
        ("model: openai:m\nmcp: [{name: x, url: y}]", False),
        ("model: openai:m\nfeatures: [{Compaction: {at: 5, url: x}}]", False),
    ],
)
def test_the_published_schema_says_what_is_checked(front_matter: str, is_right: bool) -> None:
    schema: Any = json.loads(json.dumps(front_matter_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(front_matter)) == is_right
    try:
        file_of(front_matter)
    except FileFault:
        assert not is_right
    else:
        assert is_right


def written(template: str, **given: Any) -> str:
    return file_of("model: openai:m", template).instructions.write(RunInput(agent="support", **given))


def test_values_of_the_input_stand_in_the_instructions() -> None:
    template = "Help {{user}} of {{ tenant }} with {{ prompt }} in {{ metadata.the-shop.de }}."
    given = {"prompt": "order 7", "user": "ada", "tenant": "acme", "metadata": {"the-shop.de": "Köln"}}
    assert written(template, **given) == "Help ada of acme with order 7 in Köln."


def test_a_value_is_on_one_line_and_is_not_read_again() -> None:
    prompt = "a\n# Rules\r\nb\u2028c\x0bd {{ user }}"
    assert written("Task: {{ prompt }}", prompt=prompt, user="ada") == "Task: a # Rules b c d {{ user }}"


def test_what_is_missing_is_empty_but_for_metadata() -> None:
    assert written("[{{ tenant }}{{ user }}]", prompt="x") == "[]"
    with pytest.raises(InvalidRunInputError, match="\"metadata\" has no 'order'"):
        written("{{ metadata.order }}", prompt="x", metadata={"orders": "1"})


def test_the_prompt_of_messages_is_the_text_of_the_last_user_message() -> None:
    said = [
        {"role": "user", "text": "first"},
        {"role": "assistant", "text": "yes?"},
        {"role": "user", "text": "second"},
    ]
    assert written("{{ prompt }}", messages=said) == "second"
    assert written("{{ prompt }}", messages=said, prompt="third") == "third"
    parts = [{"type": "text", "text": "look:"}, {"type": "image", "url": "https://example.com/a.png"}]
    assert written("{{ prompt }}", prompt=parts) == "look:"


def test_braces_are_written_with_a_backslash() -> None:
    assert file_of("model: openai:m", r"Write \{{ prompt }} and {x} and }}.").instructions.plain == (
        "Write {{ prompt }} and {x} and }}."
    )


def test_a_version_is_the_digest_of_the_bytes() -> None:
    one, same, other = (file_of("model: openai:m", text) for text in ("Hi", "Hi", "Hi."))
    assert (one.digest == same.digest, one.digest == other.digest, len(one.digest)) == (True, False, 64)


def test_files_of_windows_are_read() -> None:
    file = parse_agent_file("support", b"\xef\xbb\xbf---\r\nmodel: openai:m\r\n---\r\nHi\r\nyou\r\n")
    assert file.instructions.plain == "Hi\nyou"


def shares(text: str) -> list[str]:
    labels = parse_labels(text)["support"]
    chosen = (label_of("support", labels, f"conversation-{number}") for number in range(2_000))
    return [each.name if each else "" for each in chosen]


def test_shares_are_those_of_the_conversations() -> None:
    chosen = shares(f'[support]\nproduction = "{DIGEST}"\ncandidate = {{version = "{DIGEST}", share = "5%"}}')
    assert 60 < chosen.count("candidate") < 140
    assert chosen.count("candidate") + chosen.count("production") == 2_000
    again = shares(f'[support]\nproduction = "{DIGEST}"\ncandidate = {{version = "{DIGEST}", share = "5%"}}')
    wider = shares(f'[support]\nproduction = "{DIGEST}"\ncandidate = {{version = "{DIGEST}", share = "10%"}}')
    assert chosen == again
    assert all(after == "candidate" for before, after in zip(chosen, wider, strict=True) if before == "candidate")


def test_without_production_the_rest_is_the_file_as_it_is() -> None:
    chosen = shares(f'[support]\ncandidate = {{version = "{DIGEST}", share = "50%"}}\nolder = "{DIGEST}"')
    assert set(chosen) == {"candidate", ""}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[support\n", "line 1: it is no TOML"),
        ('[support]\nproduction = "x"', "line 2: 'production' is 'x'; it must be a digest"),
        (f'[support]\na = "{DIGEST}"\nb = {{version = "{DIGEST}", share = 5}}', "line 3: the share of 'b'"),
        (f'[support]\nb = {{version = "{DIGEST}", part = "5%"}}', "line 2: 'b' is {'version'"),
        (f'[support]\nb = {{version = "{DIGEST}", share = "101%"}}', "line 1: the shares"),
        (f'[support]\ncurrent = "{DIGEST}"', "line 2: 'current' cannot be a label"),
        (f'[support]\n{DIGEST[:8]} = "{DIGEST}"', "cannot be a label"),
        (f"[support]\nb = {'9' * 5_000}", "it has 5,004 characters; the limit for a line is 1,000"),
        ('support = "x"', 'line 1: "support" is no table'),
    ],
)
def test_a_fault_of_labels_has_its_line(text: str, said: str) -> None:
    with pytest.raises(FileFault) as caught:
        parse_labels(text)
    assert said in str(caught.value)


async def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/agent-files.md").read_text()
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    shop = ModuleType("page_shop")
    exec(blocks["python"], vars(shop))
    monkeypatch.setitem(sys.modules, "page_shop", shop)
    monkeypatch.chdir(tmp_path)
    text = blocks["markdown"]
    (tmp_path / "support.md").write_text(text)
    digest = parse_agent_file("support", text.encode()).digest
    (tmp_path / "labels.toml").write_text(blocks["toml"].replace("DIGEST", digest))
    loaded = load(["page_shop"])
    folder = AgentFolder(tmp_path, loaded.registry, ())
    await folder.load()
    assert folder.problems == []
    assert [each.name for each in folder.labels["support"]] == ["production", "candidate"]
    agent = loaded.registry.agents["support"]
    run = await run_agent(
        agent,
        RunInput(agent="support", prompt="Where is order 7?", metadata={"shop": "the shoe shop"}),
        model=ScriptedModel(Say(calls=[Call("find_order", {"order": 7})]), "On Monday."),
    )
    assert run.output == "On Monday."


@pytest.fixture
def new_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[tuple[LoadedModules, AgentFolder]]]:
    """A worker that begins to serve the folder, with these things in its code."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    (tmp_path / "agents").mkdir()

    async def begin(**code: Any) -> tuple[LoadedModules, AgentFolder]:
        module = ModuleType("code_of_worker")
        vars(module).update(code, __file__="code.py")
        monkeypatch.setitem(sys.modules, "code_of_worker", module)
        loaded = load(["code_of_worker"])
        folder = AgentFolder(tmp_path / "agents", loaded.registry, ())
        await folder.load()
        return loaded, folder

    return begin


@pytest.mark.parametrize("named", ["tools: [look_up]", "mcp: [stock]", "features: [house_skills]"])
async def test_a_version_without_something_that_its_file_names_begins_no_run(
    new_worker: Any, tmp_path: Path, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the wrong file nor an older version is served without it, also not when the folder is read again."""
    path, parts = tmp_path / "agents/support.md", agent_file_parts
    code = {"look_up": parts.look_up, "stock": parts.stock, "house_skills": parts.house_skills}
    path.write_text(f"---\nmodel: openai:m\n{named}\n---\nOlder.")
    await new_worker(**code)
    path.write_text(f"---\nmodel: openai:m\n{named}\n---\nWhole.")
    _, folder = await new_worker(**code)
    assert folder.problems == []
    loaded, folder = await new_worker()
    for _ in range(2):
        assert (folder.served, len(folder.problems)) == ([], 1)
        assert "line 3: no loaded module declares a" in folder.problems[0]
        assert folder.problems[0].endswith("The agent 'support' is not served.")
        await folder.load()
    digest = digest_of(path.read_bytes())
    versions = AgentVersions(loaded.registry, configured_content_store())
    assert await versions.agent_of("support", AgentVersion(digest=digest)) is not None  # a run that has begun goes on
    assert f"The version {digest[:12]} of the agent 'support' lacks something here" in caplog.text
    with pytest.raises(InvalidRunInputError, match="line 3: no loaded module declares"):
        await versions.agent_of("support", AgentVersion(digest=digest), begins=True)
    path.write_text("---\nmodel: openai:m\n---\nPlain.")
    (tmp_path / "agents/labels.toml").write_text(f'[support]\nproduction = "{digest}"')
    loaded, folder = await new_worker()
    assert "line 2: 'production' of 'support': the version" in folder.problems[0]
    with pytest.raises(InvalidRunInputError, match="line 3: no loaded module declares"):
        await AgentVersions(loaded.registry, configured_content_store()).chosen("support", digest, "c")


async def test_a_restart_with_a_wrong_file_serves_the_newest_version_that_is_whole(
    new_worker: Any, tmp_path: Path
) -> None:
    path = tmp_path / "agents/support.md"
    for text in (
        "model: openai:m\n---\nFirst.",
        "model: openai:m\n---\nSecond.",
        "model: openai:m\ntools: [look_up]\n---\nX",
    ):
        path.write_text(f"---\n{text}")
        await new_worker(look_up=agent_file_parts.look_up)
    loaded, folder = await new_worker()
    for _ in range(2):
        assert loaded.registry.agents["support"].instructions == "Second."
        assert "line 3: no loaded module declares a tool named 'look_up'" in folder.problems[0]
        await folder.load()


@pytest.mark.parametrize("has_storage", [True, False])
@pytest.mark.parametrize("has_labels", [True, False])
async def test_labels_without_a_content_storage_are_warned_of_at_the_start_and_by_the_doctor(
    new_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_storage: bool, has_labels: bool
) -> None:
    """After a restart a worker has no former versions. It is said once."""
    if not has_storage:
        monkeypatch.delenv("MULLIGAN_CONTENT_DIR")
    path, labels = tmp_path / "agents/support.md", tmp_path / "agents/labels.toml"
    path.write_text("---\nmodel: openai:m\n---\nGood.")
    if has_labels:
        labels.write_text(f'[support]\nproduction = "{digest_of(path.read_bytes())}"')
    loaded, _ = await new_worker()
    said: list[str] = []
    folder = AgentFolder(tmp_path / "agents", loaded.registry, (), said.append)
    await folder.load()
    await folder.load()
    is_warned = has_labels and not has_storage
    assert [each for each in said if "set MULLIGAN_CONTENT_DIR" in each] == [f"warning: {folder.warning}"] * is_warned
    found = await check_agent_files(folder, "agents")
    assert [each.state for each in found] == ["warning" if is_warned else "ok"]


@pytest.mark.parametrize("has_storage", [True, False])
@pytest.mark.parametrize("fault", ["no TOML", "no such version", "no file"])
async def test_a_version_that_was_taken_back_stays_so_when_a_worker_starts(
    new_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_storage: bool, fault: str
) -> None:
    """Also where the file of labels is wrong then."""
    path, labels = tmp_path / "agents/support.md", tmp_path / "agents/labels.toml"
    if not has_storage:
        monkeypatch.delenv("MULLIGAN_CONTENT_DIR")
    code = {"look_up": agent_file_parts.look_up}
    path.write_text("---\nmodel: openai:m\n---\nGood.")
    (tmp_path / "agents/other.md").write_text("---\nmodel: openai:m\n---\nOther.")
    good = digest_of(path.read_bytes())
    _, folder = await new_worker(**code)
    path.write_text("---\nmodel: openai:m\n---\nBad.")
    labels.write_text(f'[support]\nproduction = "{good}"', encoding="utf-8-sig")  # as some editors do
    await folder.load()
    assert folder.problems == []
    if fault == "no TOML":
        labels.write_text(f'[support]\nproduction = "{good}')
    elif fault == "no such version":
        labels.write_text(f'[support]\nproduction = "{DIGEST}"')
    else:
        labels.unlink()
        labels.mkdir()
    loaded, folder = await new_worker(**code)
    versions = AgentVersions(loaded.registry, configured_content_store())
    if has_storage:
        assert "stay as they were." in folder.problems[0]
        chosen = await versions.chosen("support", None, "c")
        assert chosen is not None
        assert chosen[0].instructions == "Good."
    else:
        assert "are not known, so that its runs begin with a version that they name alone." in folder.problems[0]
        for wanted in (None, "production"):
            with pytest.raises(StorageError, match='labels of the agent "support" are not known'):
                await versions.chosen("support", wanted, "c")
    if has_storage or fault != "no file":  # one that cannot be read may name any agent
        assert await versions.chosen("other", None, "c") is not None
    current = await versions.chosen("support", "current", "c")
    assert current is not None
    assert current[0].instructions == "Bad."
    if labels.is_dir():
        labels.rmdir()
    labels.write_text("")  # now nothing is taken back, and the storage forgets it too
    await folder.load()
    labels.write_text("[support")
    loaded, folder = await new_worker(**code)
    if has_storage:
        assert await folder.store.labels("support") == []
    labels.write_text("")
    await folder.load()
    chosen = await AgentVersions(loaded.registry, configured_content_store()).chosen("support", None, "c")
    assert chosen is not None
    assert chosen[0].instructions == "Bad."
