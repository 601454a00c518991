"""Calls in a model's text: every dialect is read, prose and data never are, and the time is bounded by the length."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.activities.answers.repair_json import parse_json, repair_json
from mulligan.activities.calls_in_text.calls_in_text import as_text, describe
from mulligan.activities.calls_in_text.find_calls import (
    ARGUMENTS,
    MAX_BROKEN,
    MAX_WASTED,
    NAMES,
    CallReader,
    find_calls,
)
from mulligan.values import well_formed
from mulligan.wire.agent_facts import ToolDefinition
from tests.support.examples import examples

TOOLS = {"search", "now"}
FUZZ = settings(derandomize=True, deadline=None, max_examples=examples(100))
OBJECT = '{"q": [1, {"x": "}"}]}'


def calls_found_in(text: str) -> tuple[str, list[tuple[str, str]]]:
    rest, calls = find_calls(text, TOOLS)
    assert all(call.id == "" for call in calls)
    return rest, [(call.name, call.arguments) for call in calls]


DIALECTS = {
    "LangChain": f'Thought: so\nAction:\n```json\n{{"action": "search", "action_input": {OBJECT}}}\n```',
    "LangChain's $JSON_BLOB": f'Action:\n```\n{{\n  "action": "search",\n  "action_input": {OBJECT}\n}}\n```',
    "name, arguments": f'```json\n{{"name": "search", "arguments": {OBJECT}}}\n```',
    "arguments first": f'```json\n{{"arguments": {OBJECT}, "name": "search"}}\n```',
    "tool, tool_input": f'```\n{{"tool": "search", "tool_input": {OBJECT}}}\n```',
    "function": f'```json\n{{"function": {{"name": "search", "arguments": {json.dumps(OBJECT)}}}}}\n```',
    "type function": f'{{"type": "function", "function": {{"name": "search", "arguments": {OBJECT}}}}}',
    "tool_calls": f'{{"role": "assistant", "tool_calls": [{{"id": "1", "function": {{"name": "search", "arguments": {OBJECT}}}}}]}}',
    "tool_use": f'{{"type": "tool_use", "id": "1", "name": "search", "input": {OBJECT}}}',
    "Hermes": f'<tool_call>\n{{"name": "search", "arguments": {OBJECT}}}\n</tool_call>',
    "Hermes, not closed": f'<tool_call>{{"name": "search", "arguments": {OBJECT}}}',
    "Hermes in a fence": f'```xml\n<tool_call>{{"name": "search", "arguments": {OBJECT}}}</tool_call>\n```',
    "function_call": f'<function_call> {{"name": "search", "arguments": {OBJECT}}} </function_call>',
    "Llama 3": f'<|python_tag|>{{"name": "search", "parameters": {OBJECT}}}<|eom_id|>',
    "Llama's function": f"<function=search>{OBJECT}</function>",
    "Mistral": f'[TOOL_CALLS][{{"name": "search", "arguments": {OBJECT}}}]',
    "Mistral's newer": f"[TOOL_CALLS]search[ARGS]{OBJECT}",
    "bare": f'{{"name": "search", "parameters": {OBJECT}}}',
    "bare, with a thought": f'{{"thought": "hm", "name": "search", "args": {OBJECT}}}',
    **{f"{name}, {given}": f'{{"{name}": "search", "{given}": {OBJECT}}}' for name in NAMES for given in ARGUMENTS},
}


@pytest.mark.parametrize("text", DIALECTS.values(), ids=DIALECTS)
def test_each_dialect_is_read_with_its_arguments_unchanged(text: str) -> None:
    rest, calls = calls_found_in(text)
    assert calls == [("search", OBJECT)]
    assert rest in ("", "Thought: so")


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        ('Hi.\n```json\n[{"name": "search", "arguments": {}}, {"name": "now", "arguments": {}}]\n```\n', "Hi.", [("search", "{}"), ("now", "{}")]),
        ('```json\n{"name": "search", "arguments": {}}\n{"name": "now"}\n```', "", [("search", "{}"), ("now", "")]),
        ('<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": "search", "arguments": {}}</tool_call>', "", [("now", ""), ("search", "{}")]),
        ('One {"name": "search", "arguments": {"q": 1}}', "One", [("search", '{"q": 1}')]),
        ('{"x": 1} {"name": "now", "arguments": null}', '{"x": 1}', [("now", "")]),
        ('```json\n{"name": "made_up", "arguments": {"q": 1}}\n```', "", [("made_up", '{"q": 1}')]),
        ('<tool_call>{"name": "made.up", "arguments": "{\\"q\\": 1}"}</tool_call>', "", [("made.up", '{"q": 1}')]),
        ('```json\n{"action": "search", "action_input": "of all"}\n```', "", [("search", '"of all"')]),
        ('```json\n{"name": "made_up", "arguments": {"q": "a\nb"}}\n```', "", [("made_up", '{"q": "a\nb"}')]),
        ("<function=search>{'q': 1,}</function>", "", [("search", "{'q': 1,}")]),
        ("```\n{'arguments': {'q': 1}, 'name': 'search'}\n```", "", [("search", "{'q': 1}")]),
        ("<tool_call>{'name': 'now'}</tool_call>", "", [("now", "")]),
        # The second call of a broken list is unreadable: none of its text is lost, and the first call does not run alone.
        ('```\n[{"name": "search", "arguments": {"q": 1}}, {"na"me": "now"}]\n```', "", [("search", '{"q": 1}}, {"na"me": "now"}')]),
        # A string without its quote does not reach into the next block.
        ('<tool_call>\n{"name\n</tool_call>\n<tool_call>{"name": "now"}</tool_call>', '<tool_call>\n{"name\n</tool_call>', [("now", "")]),
        ('<tool_call>{"name": "search"</tool_call>\n<tool_call>{"a": {"name": "now", "arguments": {}}, "b": 2}</tool_call>',
         '<tool_call>{"name": "search"</tool_call>\n<tool_call>{"a": {"name": "now", "arguments": {}}, "b": 2}</tool_call>', []),
        # A code fence inside a string of the arguments, in valid JSON and in broken JSON.
        ('```json\n{"name": "search", "arguments": {"q": "a\\n```py\\nb\\n```\\n"}}\n```', "", [("search", '{"q": "a\\n```py\\nb\\n```\\n"}')]),
        ('```json\n{"name": "search", "arguments": {"q": "a\n```py\nb\n```\n"}}\n```', "", [("search", '{"q": "a\n```py\nb\n```\n"}')]),
        ('```json\n{"name": "search", "arguments": {"q": "a ```py``` b",}}\n```', "", [("search", '{"q": "a ```py``` b",}')]),
        ("{'name': 'search', 'arguments': {'q': '```json {}```'}}", "", [("search", "{'q': '```json {}```'}")]),
        ('<think>{"name": "now", "arguments": {}}</think>{"name": "search", "arguments": {}}', '<think>{"name": "now", "arguments": {}}</think>', [("search", "{}")]),
        ('Of `<think>`. {"name": "search", "arguments": {}}', "Of `<think>`.", [("search", "{}")]),
        ('{"name": "it\n{"name": "search", "arguments": {}}', '{"name": "it', [("search", "{}")]),
    ],
)  # fmt: skip
def test_several_mixed_or_quoted_calls_are_found(text: str, rest: str, calls: list[tuple[str, str]]) -> None:
    assert calls_found_in(text) == (rest, calls)


BROKEN = [
    ("{'name': 'search', 'arguments': {'q': 1}}", "{'q': 1}"),
    ('{"name": "search", "arguments": {"q": 1,},}', '{"q": 1,}'),
    ('{name: "search", arguments: {q: 1}}', "{q: 1}"),
    ('{"name": "search", "arguments": {"q": 1}', '{"q": 1}'),
    ('{"name": "search", "arguments": {"q": [1}}', '{"q": [1}'),
    ('{"name": "search", "arguments": {"q": "a\nb"}}', '{"q": "a\nb"}'),
    ('{"name": "search", "arguments": {"q": "say "hi""}}', '{"q": "say "hi""}'),
    ("{'name': 'search', 'arguments': {'q': 'it's'}}", "{'q': 'it's'}"),
    ('{"name": "search", "arguments": {"q": "cut of', '{"q": "cut of'),
    ('{"name": "search", "arguments": {"q": [1, {"a"', '{"q": [1, {"a"'),
    ('{"tool_calls": [{"function": {"name": "search", "arguments": {"q": "cut', '{"q": "cut'),
    ('{"name": "search", "arguments": {"q": 1,}, "b": 2}}', '{"q": 1,}, "b": 2}'),
    ('{"name": "search", "arguments":', ', "arguments":'),
    ('{"name": "search", "argum', ', "argum'),
]


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Well:\n```\n{}\n```\n", "<tool_call>{}</tool_call>"])
@pytest.mark.parametrize(("broken", "raw"), BROKEN)
def test_broken_json_is_a_call_if_it_begins_like_one_of_a_known_tool(broken: str, raw: str, around: str) -> None:
    rest, calls = calls_found_in(around.format(broken) if around != "{}" else broken)
    assert (rest.strip(": Wel"), calls) == ("", [("search", raw)])


def test_arguments_that_were_cut_off_are_never_taken_as_complete() -> None:
    """A later repair must not complete a call that the model did not finish."""
    whole = '{"name": "search", "arguments": {"q": "text", "n": 12, "on": true}}'
    for end in range(len(whole) - 3):
        for text in (whole[:end], f"```json\n{whole[:end]}", f"<tool_call>{whole[:end]}"):
            for name, raw in calls_found_in(text)[1]:
                assert name == "search"
                assert list(repair_json(raw, {"q", "n", "on"})) == []
                with pytest.raises(ValueError):
                    parse_json(raw)


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ('{"name": "search", "arguments": 12', ', "arguments": 12'),
        ("<tool_call>{'name': 'search', 'arguments': -1.5</tool_call>", ", 'arguments': -1.5"),
        ('{"name": "search", "arguments": nul', ', "arguments": nul'),
        ('{"arguments": {"q": "x", "name": "search"}', '{"q": "x",'),
        ('```json\n{"arguments": {"q": ["x"], "name": "search"\n```', '{"q": ["x"],'),
    ],
)
def test_arguments_without_an_end_are_given_as_text_that_no_repair_reads(text: str, raw: str) -> None:
    """The number may be the beginning of a longer one, and the name one of the arguments."""
    assert calls_found_in(text)[1] == [("search", raw)]
    assert list(repair_json(raw, {"q"})) == []
    with pytest.raises(ValueError):
        parse_json(raw)


NO_CALLS = [
    '```json\n{"name": "search", "id": "3"}\n```',
    '```json\n{"name": "search", "arguments": {}, "age": 3}\n```',
    "",
    "Plain prose about {braces}, [lists] and `code`.",
    'I would call {"name": "made_up", "arguments": {}} if I could.',
    "He said {'name': 'search', 'arguments': {}} to me.",
    '```json\n{"name": "Ada", "age": 3}\n```',
    '```json\n{"name": "Ada", "arguments": "none"}\n```',
    '```json\n{"name": "Ada Lovelace", "arguments": {}}\n```',
    '```json\n{"name": "Ada"}\n```',
    '```json\n{"name": "search", "age": 3}\n```',
    '```json\n{"type": "person", "name": "search", "arguments": {}}\n```',
    '```json\n{"name": "search", "description": "Search.", "parameters": {"type": "object"}}\n```',
    '```json\n{"name": "search", "parameters": {"type": "object", "properties": {}}}\n```',
    '```json\n[{"name": "search", "arguments": {}}, {"name": "Ada", "age": 3}]\n```',
    '```json\n[]\n```',
    '```python\ncall = {"name": "search", "arguments": {}}\n```',
    '{"data": {"name": "search", "arguments": {}}}',
    '{"name": "search", "action": "now", "arguments": {}}',
    '{"name": "search", "arguments": {}, "input": {}}',
    '{"name": 3, "arguments": {}}',
    '<tool_call>{"name": "Ada", "age": 3}</tool_call>',
    "<tool_call>search</tool_call>",
    '{"name": "search"',
    '{"action": "Final Answer"}',
]  # fmt: skip


@pytest.mark.parametrize("text", NO_CALLS)
def test_prose_and_data_are_not_calls_and_stay_unchanged(text: str) -> None:
    assert find_calls(text, TOOLS) == (text, [])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            'Thought: done\nAction:\n```json\n{"action": "Final Answer", "action_input": "It is\\n42."}\n```',
            "It is\n42.",
        ),
        ('```json\n{"action": "final_answer", "action_input": "It is\n42."}\n```', "It is\n42."),
        ('{"action": "FINAL ANSWER", "action_input": {"n": [42]}}', '{"n": [42]}'),
        ('{"action": "Final Answer", "action_input": "It is "42"', 'It is "42"'),
        ("{'action': 'Final Answer', 'action_input': 'It is 42', }", "It is 42"),
        ('{"action": "Final Answer", "action_input": "It was cut of', "It was cut of"),
        ('{"action": "Final Answer", "action_input": ""}', ""),
    ],
)
def test_the_final_answer_action_of_langchain_is_the_text_of_the_answer(text: str, answer: str) -> None:
    rest, calls = find_calls(text, TOOLS)
    assert calls == []
    assert rest == answer or (rest == "It is " and answer == 'It is "42"')  # the end of the quote is ambiguous


def test_a_tool_named_final_answer_is_called() -> None:
    assert find_calls('{"action": "final_answer", "action_input": {}}', {"final_answer"})[1][0].name == "final_answer"


UNITS = [
    "{", "[", "```", '{"', "```json\n{", "```{x} ", "<tool_call>{", "[TOOL_CALLS]{", "<think>", "<function=a>{", "<|python_tag|>[1,",
    '{"name":', '{"name": "a', '{"name":"\\"', '[{"name":', '```{"name":"search","arguments":{"a":', '```json\n{"a":"', "```{'a':'", "\\",
    '{"name":"search","arguments":{}}', "<function=a><parameter=b>", "<function=a><parameter=b>c</parameter>", '<invoke name="a">',
    "[f(a=", "f(a='", "```tool_code\nf(a=1", "<tool_call>f(a=[", "<tool_call>f(),", "<function_calls>", "<function=a>\"",
]  # fmt: skip


@pytest.mark.parametrize("before", ["", '<tool_call>{"a":' * 200, '```{"a":"' * 101])
@pytest.mark.parametrize("unit", UNITS)
def test_time_is_bounded_by_the_length_of_the_text(unit: str, before: str) -> None:
    text = before + (unit * (100_000 // len(unit)))
    reader = CallReader(text, frozenset(TOOLS))
    list(reader.blocks())
    assert reader.read <= (MAX_WASTED + 9) * len(text)
    assert reader.broken <= MAX_BROKEN


MADE = st.lists(
    st.sampled_from([*UNITS, "}", "]", '"', "'", ":", ",", " ", "\n", "name", '"arguments"', "search", "</tool_call>", "x", "\ud800", "}}"]),
    max_size=12,
).map("".join)  # fmt: skip


@FUZZ
@given(st.text() | MADE)
def test_nothing_raises_and_arguments_are_slices_of_the_text(text: str) -> None:
    rest, calls = find_calls(text, TOOLS)
    assert isinstance(rest, str)
    if not calls and "inal" not in text:
        assert rest == text
    for call in calls:
        is_object_made_here = "(" in text or "<parameter" in text
        assert (
            is_object_made_here
            or call.arguments in str(well_formed(text))
            or isinstance(parse_json(call.arguments), str)
        )


PROSE = st.text(st.characters(blacklist_characters="{["), max_size=60)


@FUZZ
@given(PROSE, PROSE)
def test_a_text_without_json_contains_no_call(before: str, after: str) -> None:
    assert find_calls(before + after, TOOLS) == (before + after, [])
    data = before + '{"name": "Ada", "age": 3}' + after
    assert find_calls(data, {"Ada"}) == (data, [])


ARGS = st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3)), max_size=4)  # fmt: skip


@FUZZ
@given(st.sampled_from(["search", "other", 'od"d']), ARGS, st.booleans())
def test_a_call_written_into_the_text_is_read_back_equal(
    name: str, arguments: dict[str, object], ascii_only: bool
) -> None:
    raw = json.dumps(arguments, ensure_ascii=ascii_only)
    rest, calls = find_calls("So:\n" + as_text(name, raw), {"search", 'od"d'})
    assert (rest, [(call.name, call.arguments) for call in calls]) == ("So:", [(name, raw)])


def test_the_instructions_contain_the_schemas_and_a_form_that_can_be_read() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    told = describe([ToolDefinition(name="search", description="Search it.", parameters=schema)])
    assert "`search`: Search it." in told
    assert json.dumps(schema, separators=(",", ":")) in told
    assert as_text("NAME", "{...}") in told
    assert describe([]) == ""
    assert find_calls(told, {"search"}) == (told, [])
