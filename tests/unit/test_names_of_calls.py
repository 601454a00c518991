"""The names of calls, in every spelling and dialect: unknown names, names near a tool's, and answers that are no calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mulligan import Agent, Call, CallsInText, ProviderStrategy, Say, tool
from mulligan.activities.answers.inspect_answer import meant_names
from mulligan.activities.answers.size_limits import MOST_CALLS
from mulligan.activities.calls_in_text.find_calls import ARGUMENTS, NAMES, find_calls
from mulligan.activities.calls_in_text.python_calls import python_calls
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.values import StepCall
from tests.support.cut_off_calls import DIALECTS, SPELLINGS, VALUE_DIALECTS
from tests.support.examples import examples

SENT = {"to": "Ada's", "text": 'say "hi"', "tags": "a"}
UNKNOWN = ["fetch_mail", "Mailer", "send", "mail.send", "get_weather_now"]
NEAR = ["Send_Mail", "send-mail", "sendMail", "SENDMAIL", "functions.send_mail", "functions.Send-Mail", "send__mail"]
RAN: list[dict[str, Any]] = []


@tool
def send_mail(to: str, text: str, tags: str = "") -> str:
    """Send a mail."""
    RAN.append({"to": to, "text": text, "tags": tags})
    return "sent"


@tool
def list_mails() -> str:
    """List the mails."""
    return "none"


def answers(name: str) -> dict[str, str]:
    """Texts that are a call of that name, each in another spelling and dialect."""
    # A fence within an answer is a call of its own.
    spellings = {key: spell(SENT) for key, spell in SPELLINGS.items() if "fence" not in key}
    texts = {
        f"{dialect}, {key}": write(raw, name) for dialect, write in DIALECTS.items() for key, raw in spellings.items()
    }
    del texts["arguments first, surplus closers"]  # of no tool is this read: where the arguments end is unclear
    if name.replace(".", "").isidentifier():
        texts |= {dialect: write(SENT, name) for dialect, write in VALUE_DIALECTS.items()}
    texts["at the end of prose"] = f"I will do that.\n\n{DIALECTS['bare'](json.dumps(SENT), name)}\n"
    return texts


def any_name(name: str) -> dict[str, str]:
    """The texts of `answers` that are a call of any name.

    The others call exact names only: without a tag they may be the answer itself, and one has a string as arguments.
    """
    exact = {"Python", "Llama's Python", "as a string, encoded twice"}
    return {key: text for key, text in answers(name).items() if key not in exact and not key.startswith("function, ")}


def told(call: StepCall) -> tuple[str | None, str]:
    """The kind and the text of what the model was told about a call."""
    assert call.result is not None
    return call.result.error.kind if call.result.error else None, call.result.text


async def run(texts: list[Say | str], **options: Any) -> AgentRun:
    agent = Agent(
        name="a", model="scripted:test", tools=[send_mail, list_mails], max_steps=500, max_repeats=1000, **options
    )
    RAN.clear()
    return await run_agent(agent, "Go.", model=ScriptedModel(*texts))


@pytest.mark.parametrize("name", UNKNOWN)
async def test_a_call_of_an_unknown_tool_is_never_the_answer(name: str) -> None:
    """It is told which tools there are, in each spelling and dialect in which a call of a known tool is read."""
    texts = any_name(name)
    ended = await run([*texts.values(), "done"], features=[CallsInText()])
    assert ended.output == "done"
    kinds = [[told(call)[0] for call in step.tool_calls] for step in ended.steps[:-1]]
    assert dict(zip(texts, kinds, strict=True)) == {key: ["unknown_tool"] for key in texts}
    assert all(f"There is no tool `{name}`" in told(call)[1] for call in ended.calls)
    assert RAN == []


@pytest.mark.parametrize("name", NEAR)
async def test_a_near_name_is_a_call_of_exactly_that_tool(name: str) -> None:
    texts = any_name(name)
    ended = await run([*texts.values(), "done"], features=[CallsInText()])
    assert ended.output == "done"
    for (key, text), step in zip(texts.items(), ended.steps, strict=False):
        [call] = step.tool_calls
        assert call.name == "send_mail", (key, text)
        assert [(each.before, each.after) for each in call.repairs if each.by == "name"] == [(name, "send_mail")]
    executed = [call for call in ended.calls if call.result and call.result.error is None]
    assert len(executed) == len(RAN) > len(texts) / 2
    assert all(each == SENT for each in RAN)
    said = [call.name for message in ended.messages if message.role == "assistant" for call in message.tool_calls]
    assert {*said} == {"send_mail"}


@pytest.mark.parametrize(
    ("name", "raw", "finish", "kind", "part"),
    [
        ("fetch_mail", '{"to": "A', "length", "unknown_tool", 'You sent: {"to": "A'),
        ("fetch_mail", "{'to': 'A'}", None, "unknown_tool", "You sent: {'to': 'A'}"),
        ("fetch_mail", '{"to": "A"}', None, "unknown_tool", ""),
        ("send_mail", '{"to": "A', "length", "truncated_call", 'You sent: {"to": "A'),
        ("Send-Mail", '{"to": "A', "length", "truncated_call", "the call of `send_mail`"),
        ("SendMail", '{"to": 1', None, "invalid_json", 'You sent: {"to": 1'),
        ("SendMail", '{"to": "A"}', None, "invalid_arguments", "`text`: is required"),
    ],
)
async def test_the_name_is_looked_up_before_the_arguments(
    name: str, raw: str, finish: Any, kind: str, part: str
) -> None:
    ended = await run([Say(calls=[Call(name, raw)], finish_reason=finish), "done"])
    [call] = ended.calls
    found, text = told(call)
    assert found == kind
    assert part in text
    assert ("You sent" in text) == (raw != '{"to": "A"}' or kind == "invalid_arguments")
    is_known = kind != "unknown_tool"
    assert (call.name, call.raw_arguments) == ("send_mail" if is_known else name, raw)
    assert [repair.by for repair in call.repairs] == ["name"] * (is_known and name != "send_mail")
    [span] = [span for span in ended.spans if span.name == "ai.toolCall"]
    assert span.attributes["gen_ai.tool.name"] == call.name
    assert [*span.attributes.get("mulligan.repairs", [])] == [repair.by for repair in call.repairs]


@pytest.mark.parametrize(
    ("name", "names", "meant"),
    [
        ("get_page", ["get_page", "getPage"], "get_page"),
        ("GetPage", ["get_page", "getPage"], None),
        ("get page", ["get_page", "get_pages"], None),
        ("get-page", ["get_page", "get_pages"], "get_page"),
        ("functions.get_page", ["get_page"], "get_page"),
        ("functions.get_page", ["functions.get_page", "get_page"], "functions.get_page"),
        ("tools/GET-PAGE", ["get_page"], "get_page"),
        ("get_pag", ["get_page"], None),
        ("page", ["get_page"], None),
        ("server__get_page", ["server_get_page"], "server_get_page"),
        ("", ["a"], None),
        ("_", ["-", "a"], None),
        ("functions.", ["a"], None),
    ],
)
def test_a_name_means_one_tool_or_none(name: str, names: list[str], meant: str | None) -> None:
    assert meant_names([name], names) == ({} if meant in (None, name) else {name: meant})


CONFIGS = [
    '{"name": "my-service", "parameters": {"replicas": 3}}',
    '{"function": "sigmoid", "parameters": {"alpha": 0.1}}',
    '{"name": "listPets", "parameters": {"limit": {"in": "query"}}}',
    '{"tool": "hammer", "params": {"weight": 2}}',
    '{"action": "approve", "action_input": {"order": 7}}',
    '{"name": "List Mails"}',
    '{"name": "List Mails", "input": {}}',
    '{"name": "List_Mails"}',
    '{"name": "List-Mails", "input": {}}',
    '{"name": "Send Mail", "input": "yes", "type": "function"}',
    '[{"name": "List Mails"}, {"name": "Send Mail"}]',
    '[{"name": "Send_Mail"}, {"name": "List_Mails"}]',
]
EXAMPLES = [
    '<invoke name="list_mails"></invoke>',
    '<invoke name="send_mail"><parameter name="to">a</parameter></invoke>',
    "<function=list_mails></function>",
    "<tool_call>\n<function=send_mail><parameter=to>a</parameter></function>\n</tool_call>",
    "<tool_call>list_mails()</tool_call>",
    "```tool_code\nlist_mails()\n```",
]
"""Calls of the tools, if the answer ends with them."""
AROUND = [
    "{} is the form of a call.",
    "{}\n\nThat is a call.",
    "`{}`",
    "````markdown\n{}\n````",
    "{}\n```bash\nls\n```",
    "{}\n```bash\nls\n```\nIt lists.",
    "{}. Or:\n```python\nx = 1\n```",
]
FENCED = [
    "```xml\n{}\n```",
    "```markdown\nA call:\n{}\n```",
    "So:\n```html\n{}\n```\n",
    "```text\n{}\n```\nThat is all.",
]
ORDINARY = [
    *CONFIGS,
    *(f"The config is:\n{text}" for text in CONFIGS),
    *(f"The config is:\n```json\n{text}\n```" for text in CONFIGS),
    *(f"An example row: {text} in the table." for text in CONFIGS),
    *(around.replace("{}", text) for text in EXAMPLES for around in AROUND),
    *(around.replace("{}", text) for text in EXAMPLES[:-1] for around in FENCED),
    "[sorted(key=1), min()]",
    "[list_mails(), min()]",
    '{"name": "Ada", "age": 36}',
    '{"name": "Ada", "input": {"age": 36}}',
    '{"name": "resize", "params": {"width": 100}}',
    '{"action": "restart", "parameters": {"host": "a"}}',
    '{"action": "restart", "input": {"host": "a"}}',
    '{"function": "sales", "input": {"year": 2025}}',
    '{"tool": "hammer", "price": 12}',
    '{"name": "x", "arguments": ["a", "b"]}',
    '{"name": "x", "arguments": {"a": 1}, "returns": "str"}',
    "{'name': 'x', 'arguments': {'a': 1}, 'returns': 'str'}",
    '{"name": "left-pad", "parameters": {"type": "object", "properties": {"text": {}}}}',
    '[{"name": "Ada", "age": 36}, {"name": "Bob", "age": 40}]',
    '{"commands": [{"name": "build", "arguments": {"fast": true}}]}',
    '{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x", "arguments": {}}}',
    '```json\n{"name": "app", "version": "1.0.0", "scripts": {"test": "jest"}}\n```',
    '```json5\n{name: "app", parameters: {a: 1}, version: "1.0.0"}\n```',
    "```json\n{'name': 'app', 'input': {'a': 1}}\n```",
    '```json\n{"name": "NAME", "arguments": {...}}\n```',
    '```json\n{"name": "app", "dependencies": {"a": "^1"},}\n```',
    'You could send `{"name": "x", "arguments": {}}` to it.',
    "Write {'name': 'x', 'arguments': {}} there.",
    'You could send {"name": "x", "arguments": {}}',
    'The request is:\n\n{"name": "x", "arguments": {"a": 1}}\n\nThe answer follows.',
    '```python\nprint(len(items))\n```',
    '```python\nplot(x=1, y=2)\n```',
    "```python\nsend_mail(to='a', text='b')\n```",
    "```\nget_weather(city='Rome')\n```",
    "timedelta(days=3)",
    "get_weather(city='Rome')",
    "[Point(x=1, y=2), Point(x=3, y=4)]",
    "[1, 2, 3]",
    "[f(x) for x in items]",
    "[x](https://example.com)",
    "[see(1)] and more",
    "send_mail(to='a') sends a mail.",
    "def send_mail(to, text): ...",
    "sorted(names, key=len)",
    "f(x) = x**2",
    "Use `<tool_call>` tags.",
    "<tool_call> is Hermes' tag, and <function=name> is Llama's.",
    "<function=name> ... </function>",
    '<invoke name="x"> begins a call.',
    "<parameter=a>1</parameter>",
    "```xml\n<parameters><parameter name='a'>1</parameter></parameters>\n```",
    "<tool_call>\nI am not sure (yet)\n</tool_call>",
    "```tool_code\nx = 1\n```",
    "```tool_code\nprint('hi')\n```",
    "| name | arguments |\n|---|---|\n| x | {} |",
    "name: x\narguments:\n  a: 1",
]  # fmt: skip


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_alone_is_a_call(text: str) -> None:
    called = {("list_mails", "{}"), ("send_mail", '{"to": "a"}')}
    for around in ("{}", "I do that.\n{}\n", "```python\nx = 1\n```\nNow:\n{}<|im_end|>", "{}\n{}"):
        calls = find_calls(around.replace("{}", text), {"send_mail", "list_mails"})[1]
        assert len(calls) == around.count("{}")
        assert {(call.name, call.arguments) for call in calls} < called
    first = find_calls(f"{text} is a call.\n\n<tool_call>list_mails()</tool_call>", {"send_mail", "list_mails"})[1]
    assert [call.name for call in first] == ["list_mails"]


@pytest.mark.parametrize("end", ["]", ",]", ", ]", "\n,\n]"])
def test_a_list_of_python_calls_may_end_with_a_comma(end: str) -> None:
    calls = find_calls(f"[send_mail(to='a'), list_mails(){end}", {"send_mail", "list_mails"})[1]
    assert [(call.name, call.arguments) for call in calls] == [("send_mail", "{\"to\": 'a'}"), ("list_mails", "{}")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("f()", [("f", "{}")]),
        ("f(x=-1.5e+3, y=None)", [("f", '{"x": -1.5e+3, "y": None}')]),
        ("f(x=[1, (2)], y='a)')", [("f", '{"x": [1, (2)], "y": \'a)\'}')]),
        ("f(x=1,)", [("f", '{"x": 1}')]),
        ("f(x=1); g()", [("f", '{"x": 1}'), ("g", "{}")]),
        ("[f(x=1), g()", [("f", '{"x": 1}'), ("g", "{}")]),
        ("print(f(x=1))", [("f", '{"x": 1}')]),
        # What cannot be read is given as it is written, and is not JSON.
        ("f(a=1, x=1 y=2) g()", [("f", '{"a": 1, x=1 y=2) g()')]),
        ("f(x=1, 2)", [("f", '{"x": 1, 2)')]),
        ("f(x=1", [("f", "{x=1")]),
        ("f(x=1, ", [("f", '{"x": 1,')]),
        ("f(x='a", [("f", "{x='a")]),
        ("f(", [("f", "{")]),
        ("f(x=)", [("f", '{"x": }')]),
        ("f(x=1) so", []),
        ("f(1)", []),
        ("f(x==1)", []),
    ],
)
def test_python_calls_are_read_whole_or_left_unreadable(text: str, calls: list[tuple[str, str]]) -> None:
    found = [(call.name, call.arguments) for call in python_calls(text)]
    assert [(name, arguments.rstrip()) for name, arguments in found] == calls


def test_python_calls_beyond_the_limit_are_not_read() -> None:
    assert len(python_calls("f(x=1), " * 10_000)) == MOST_CALLS + 1


@pytest.mark.parametrize("text", ORDINARY)
async def test_an_ordinary_answer_is_no_call(text: str) -> None:
    ended = await run([text], features=[CallsInText()])
    assert (ended.output, ended.calls) == (text, [])


class Job(BaseModel):
    name: str
    arguments: dict[str, int]


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```"])
async def test_an_output_in_the_text_that_looks_like_a_call_is_the_output(around: str) -> None:
    written = json.dumps({"name": "build", "arguments": {"jobs": 4}})
    ended = await run([around.replace("{}", written)], features=[CallsInText()], output=ProviderStrategy(Job))
    assert ended.output == Job(name="build", arguments={"jobs": 4})
    wrong = json.dumps({"name": "build", "arguments": {"jobs": "many"}})
    ended = await run([around.replace("{}", wrong), written], features=[CallsInText()], output=ProviderStrategy(Job))
    assert [told(call)[0] for call in ended.calls] == ["unknown_tool"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from([*NAMES, *ARGUMENTS, "type", "id", "age", "value"])
WRITTEN = [
    json.dumps,
    repr,
    lambda value: f"{value}".replace("'", '"'),
    lambda value: f"```json\n{json.dumps(value, indent=1)}\n```",
    lambda value: f"So: {json.dumps(value)}",
    lambda value: f"```\n{value!r}\n```",
]


TITLES = st.sampled_from(["Send Mail", "List Mails", "SEND MAIL", "List_Mails", "send-mail", "other", "my-service"])


@settings(derandomize=True, deadline=None, max_examples=examples(400))
@given(st.dictionaries(KEYS, TITLES | VALUES, max_size=4) | VALUES, st.sampled_from(WRITTEN))
def test_json_is_a_call_only_with_a_name_and_an_object_of_arguments(value: Any, write: Any) -> None:
    """If no tool has exactly that name; whatever else the answer has, it stays the answer."""
    text = write(value)
    rest, calls = find_calls(text, {"send_mail", "list_mails"})
    if not calls:
        is_final = isinstance(value, dict) and "final" in str(value).lower()
        assert rest == text or is_final
        return
    [call] = calls
    assert {*value} - {"type", "id"} == {"name", "arguments"}
    assert " " not in call.name
    assert call.name == value["name"]
    assert isinstance(value["arguments"], dict)
    assert not text.startswith("So: ")


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from([*"abz(=,)[]{}\"' \n", "send_mail(", "to=", "'x'", "None", "f(", "```tool_code\n", "```", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", '<invoke name="f">', "</invoke>", "<function_calls>"]), max_size=14).map("".join))  # fmt: skip
def test_any_text_is_read(text: str) -> None:
    rest, calls = find_calls(text, {"send_mail"})
    assert rest == text or calls
    for call in calls:
        assert len(call.arguments) <= 2 * len(text) + 20
