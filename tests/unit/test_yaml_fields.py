"""Front matter that others have written: what is read, what is refused, and that no file stops or fills the process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.schema.yaml_fields import LONGEST_KEY, MOST_CHARACTERS, MOST_VALUES, FileFault, read_yaml

LEVELS = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]" for level in range(1, 10)]
MERGED = [f"l{level}: &l{level} {{<<: [{', '.join([f'*l{level - 1}'] * 60)}]}}" for level in range(1, 20)]
COSTLY = {
    "open lists": f"model: {'[' * 60_000}",
    "lists in each other": f"model: {'[' * 30_000}{']' * 30_000}",
    "open mappings": f"model: {'{a: ' * 16_000}",
    "open keys": "? " * 30_000,
    "lists in lines": "- " * 30_000,
    "lists in deeper and deeper lines": "".join(f"{' ' * level}a:\n" for level in range(350)),
    "aliases": "\n".join(["l0: &l0 [x, x]", *LEVELS, "name: *l9"]),
    "merge keys": "\n".join(["l0: &l0 {x: 1}", *MERGED, "name: *l19"]),
    "an alias of itself": "name: &a [*a]",
    "many values": "".join(f"a{number}: b\n" for number in range(6_000)),
    "many values in a line": f"name: [{'a, ' * 20_000}]",
    "a number of many parts": f"name: {'59:' * 20_000}59",
    "a number of many digits": f"name: 0x{'9' * 60_000}",
    "a number of underscores": f"name: 1{'_' * 60_000}",
    "a tag that makes a number": f"name: !!int '{'1:' * 30_000}1'",
    "a long key": f"{'a' * 60_000}: b",
    "quotes": f"name: '{chr(39) * 60_000}",
    "breaks": "name: |\n" + " \n" * 30_000,
    "colons": f"name: {':' * 60_000}",
    "too long": f"name: {'a' * 200_000}",
}
"""Front matters that took seconds or all memory, or could."""
READ_ALL = """
    import sys, json, pathlib, tempfile
    from mulligan import Agent, DeclarationError, Skills
    from mulligan.activities.agent_files.agent_file import parse_agent_file
    from mulligan.schema.yaml_fields import FileFault

    for name, front_matter in json.load(sys.stdin).items():
        data = f"---\\n{front_matter}\\n---\\nHi\\n".encode()
        try:
            parse_agent_file("support", data)
            print(name + ": is an agent")
        except FileFault as fault:
            print(f"{name}: line {fault.line}, {fault.text}")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "s").mkdir()
            (pathlib.Path(folder) / "s/SKILL.md").write_bytes(data)
            try:
                Agent(name="clerk", model="openai:m", features=[Skills(folder)])
                print(name + ": is a skill")
            except DeclarationError as fault:
                print(f"{name}: skill {str(fault)[:500]}")
"""


def test_no_front_matter_takes_all_memory_or_seconds() -> None:
    """In a process that has 2 GB and, with its start, a minute of CPU time: before, the aliases alone took all of them."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    read = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ_ALL)],
        input=json.dumps(COSTLY), capture_output=True, text=True, check=False, preexec_fn=limit, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert read.returncode == 0, read.stderr[-2_000:]
    said = read.stdout.splitlines()
    assert len(said) == 2 * len(COSTLY), read.stdout
    for name in COSTLY:
        of_agent, of_skill = (line.removeprefix(f"{name}: ") for line in said if line.startswith(f"{name}: "))
        assert of_agent.startswith("line "), name
        assert of_skill.startswith("skill "), name
        assert "recursion" not in of_agent + of_skill


def fault_of(text: str) -> str:
    with pytest.raises(FileFault) as caught:
        read_yaml(text, 2)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b\nc: *d", "line 3: it has an alias (*…), which is not allowed; write the value itself"),
        ("a: &b {}\n<<: {c: d}", "line 3: it has a merge key (<<), which is not allowed; write the fields themselves"),
        ("a: !!python/name:os.system", "line 2: it has the tag 'tag:yaml.org,2002:python/name:os.system', which"),
        ("a: !!python/object/apply:os.system [ls]", "line 2: it has the tag"),
        ("a: !own {b: c}", "line 2: it has the tag '!own'"),
        ("a: !!binary aGk=", "line 2: it has the tag"),
        ("!!set {a}", "line 2: it has the tag"),
        ("!!str a: b\n!x c: d", "line 3: it has the tag"),
        ('a: b\n"a": c', 'line 3: "a" stands there twice'),
        ('"\\e[2J": b\n"\\e[2J": c', 'line 3: "\\u001b[2J" stands there twice'),
        ("? [a]\n: b", "line 2: a key must be a text"),
        ("? {a: b}\n: b", "line 2: a key must be a text"),
        ("a: b\n...\n--- \nc: d", "line 4: the front matter has a second document; remove it"),
        ('a: "\\UFFFFFFFF"', "line 2: the front matter is no YAML"),
        ('a: "\\ud800"', "line 2: '\\ud800' has a NUL or half a character"),
        ('"\\0": b', "line 2: '\\x00' has a NUL"),
        ("a: !!int x", "line 2: 'x' is no value of its type"),
        ("a: 9223372036854775808", "line 2: the number 9223372036854775808 is too large"),
        (f"a: {'[' * 21}", "line 2: it has more than 20 levels"),
        (f"{'a' * (LONGEST_KEY + 1)}: b", f"line 2: the key '{'a' * 60}'… has 201 characters; the limit is 200"),
        (f"a: '{'b' * MOST_CHARACTERS}'", "line 2: the front matter has 65,541 characters; the limit is 65,536"),
        ("", "line 2: the front matter has no fields"),
        ("# nothing", "line 2: the front matter has no fields"),
        ("- a", "line 2: the front matter has no fields"),
        ("a", "line 2: the front matter has no fields"),
        ("a: \x1b", "line 2: the front matter is no YAML"),
        ("a: Use it: often", "line 2: the front matter is no YAML: mapping values are not allowed here; correct it, or write"),
        ("a:\n\tb: c", "line 3: the front matter is no YAML"),
        ("%YAML 2.0\n--- {}", "line 2: the front matter is no YAML"),
        (f"%YAML 1.{'9' * 5_000}\n--- {{}}", "line 2: the front matter is no YAML"),
    ],
)  # fmt: skip
def test_what_may_not_stand_there_is_told_with_its_line(text: str, said: str) -> None:
    assert fault_of(text).startswith(said)


def test_the_number_of_values_is_bounded() -> None:
    items = (MOST_VALUES - 3) * ["a"]
    assert read_yaml(f"a: [{', '.join(items)}]", 1)[0] == {"a": items}
    assert "it has more than 5,000 values" in fault_of(f"a: [{', '.join([*items, 'a'])}]")


def test_a_front_matter_of_the_most_characters_is_read() -> None:
    longest = "b" * (MOST_CHARACTERS - len("a: "))
    assert read_yaml(f"a: {longest}", 1)[0] == {"a": longest}


def test_values_are_plain() -> None:
    text = "a: 2026-01-01\nb: 'yes'\nc: yes\nd: 0x10\n1: ~\ne: =\nf: <<\ng: !!str 5\nh: ! 5\n'<<': {i: !!map {}}"
    assert read_yaml(text, 1)[0] == {
        "a": "2026-01-01", "b": "yes", "c": True, "d": 16, "1": None, "e": "=", "f": "<<", "g": "5", "h": 5, "<<": {"i": {}}
    }  # fmt: skip


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "'", '"', "|"]),
    st.sampled_from([20, 80, 10_000]),
)
def test_what_pyyaml_writes_is_read_as_pyyaml_reads_it(
    value: dict[str, Any], flow: bool | None, style: str | None, width: int
) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, default_style=style, width=width, allow_unicode=True)
    if "&" in text:  # equal lists and mappings may be one object of hypothesis
        text = yaml.safe_dump(json.loads(json.dumps(value)), default_flow_style=flow, default_style=style, width=width)
    fields, places = read_yaml(text, 1)
    assert fields == yaml.safe_load(text)  # which is `value`, but for some line breaks that PyYAML does not write right
    assert all(1 <= place.line <= text.count("\n") + text.count("\x85") + text.count("\u2028") + text.count("\u2029") + 1 for place in places.values())  # fmt: skip
