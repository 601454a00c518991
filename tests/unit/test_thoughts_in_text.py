"""Thoughts in the text of answers: no call and no output is in them, however they are marked."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import BaseModel

from mulligan import Agent, CallsInText, ProviderStrategy, Say, tool
from mulligan.activities.answers.repair_json import parse_json, repair_json
from mulligan.activities.answers.without_thoughts import MARKERS, MAX_WASTED, _Reader, without_thoughts
from mulligan.activities.calls_in_text.find_calls import find_calls
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from tests.support.examples import examples
from tests.support.thinking_answers import AT_FIRST, OPENED, PAIRS, Answer, answers, check_calls

DRAFT = '<tool_call>{"name": "pay", "arguments": {"amount": 500}}</tool_call>'
CALL = '<tool_call>{"name": "pay", "arguments": {"amount": 5}}</tool_call>'
PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


async def paid_by(*turns: str | Say) -> tuple[list[int], AgentRun]:
    agent = Agent(name="a", model="scripted:test", tools=[pay], features=[CallsInText()])
    PAID.clear()
    run = await run_agent(agent, "Go.", model=ScriptedModel(*turns))
    return list(PAID), run


EVERY = [*PAIRS, *OPENED, *AT_FIRST]


@pytest.mark.parametrize(("opening", "closing"), EVERY)
async def test_a_call_in_a_thought_is_not_run(opening: str, closing: str) -> None:
    text = f"{opening}Perhaps {DRAFT}? No.{closing}\nShall I pay?"
    paid, run = await paid_by(text)
    assert (paid, run.output) == ([], text)
    assert (await paid_by(f"{opening}Perhaps {DRAFT}{closing}"))[0] == []


@pytest.mark.parametrize(("opening", "closing"), EVERY)
async def test_a_call_after_a_thought_is_run_once(opening: str, closing: str) -> None:
    thought = f"{opening}Perhaps {DRAFT}? Rather {CALL}.{closing}"
    paid, run = await paid_by(f"{thought}\n{CALL}", "Paid.")
    assert paid == [5]
    assert run.steps[0].text.startswith(opening.strip()[:5])  # the thought stays in the text
    assert CALL not in run.steps[0].text.removeprefix(thought.strip())


@pytest.mark.parametrize(("opening", "closing"), [*PAIRS, *AT_FIRST])
async def test_a_thought_whose_beginning_is_in_the_prompt_has_no_calls(opening: str, closing: str) -> None:
    assert (await paid_by(f"Perhaps {DRAFT}? No.{closing}\nShall I pay?"))[0] == []
    assert (await paid_by(f"{DRAFT}{closing}"))[0] == []
    assert (await paid_by(f"Perhaps {DRAFT}{closing}\n{CALL}", "Paid."))[0] == [5]


@pytest.mark.parametrize("finish", [None, "length"])
@pytest.mark.parametrize("opening", dict(EVERY))
async def test_a_thought_without_an_end_has_no_calls(opening: str, finish: Any) -> None:
    assert (await paid_by(Say(f"{opening}Perhaps {DRAFT}", finish_reason=finish)))[0] == []
    assert (await paid_by(Say(f"{opening}Perhaps\n{CALL}\n{DRAFT}", finish_reason=finish)))[0] == []


@pytest.mark.parametrize(
    "text",
    [
        f"<think>a</think> Perhaps {DRAFT}? No.</think>\nShall I pay?",
        f"<think>a <think>b</think> {DRAFT}</think>",
        f"<think>a <think>b</think> {DRAFT}",
        f"<think>a <thinking>b</thinking> {DRAFT}",
        f"<think>a</thinking>{DRAFT}",
        f"<think>a</think><think>{DRAFT}</think>",
        f"<think\n{DRAFT}",
        f"<think {DRAFT}",
        f"<think>`</think>` {DRAFT}",
        f'<think>{{"text": "</think>"}} {DRAFT}',
        f"<think>\n```\n</think>\n```\n{DRAFT}",
        f"{DRAFT}\nI have not run that.",
        f"```thinking\n```json\n{{}}\n```\n{DRAFT}\n```",
        f"<think>a</think>{DRAFT}\n<think>b</think>\nShall I pay?",
    ],
)
def test_thoughts_that_are_written_strangely_have_no_calls(text: str) -> None:
    assert find_calls(text, {"pay"})[1] == []


@pytest.mark.parametrize(
    "text",
    [
        f"{CALL}\n<think>Done.</think>",
        f"<think>a</think>\n\n<thinking>b</thinking>{CALL}\n",
        f"<think>\n<think>\nWell.</think>{CALL}",
        f"<think>Use <reflection> here.</think>{CALL}",
        f"<think></think>{CALL}",
        f"Models write `<think>` first.\n{CALL}",
        f"Models write:\n```xml\n<think>\n```\n{CALL}",
        f"<think>{DRAFT}</think>Perhaps {DRAFT}?\n<tool_call>{{'name': 'pay', 'arguments': {{'amount': 5,}}}}</tool_call>",
        f"<think>a</think><answer>{CALL}</answer>",
        f"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>{CALL}<|return|>",
        '<think>a</think><tool_call>\n<function=pay>\n<parameter=amount>\n5\n</parameter>\n</function>\n</tool_call>',
        "<think>a</think>```tool_code\npay(amount=5)\n```",
        "<think>a</think>pay(amount=5)",
        '<think>a</think>{"name": "pay", "arguments": {"amount": 5}}',
    ],
)  # fmt: skip
def test_a_call_that_ends_what_is_said_is_found(text: str) -> None:
    [call] = find_calls(text, {"pay"})[1]
    arguments = next(iter(repair_json(call.arguments)), None)
    value = arguments.value if arguments else parse_json(call.arguments)
    assert isinstance(value, dict)
    assert int(str(value["amount"])) == 5


@pytest.mark.parametrize("marker", sorted({marker.strip() for pair in EVERY for marker in pair}))
def test_a_marker_in_the_arguments_of_a_call_is_text(marker: str) -> None:
    for written in (f"Use {marker} here", f"{marker}\n"):
        raw = json.dumps({"text": written})
        forms = [f'```json\n{{"name": "send", "arguments": {raw}}}\n```', f"<function=send>{raw}</function>",
                 f'<tool_call>{{"name": "send", "arguments": {json.dumps(raw)}}}</tool_call>']  # fmt: skip
        for form in forms:
            for before in ("", "So:\n", "<seed:think>Well.</seed:think>"):
                assert [call.arguments for call in find_calls(before + form, {"send"})[1]] == [raw]
        tags = f"<function=send><parameter=text>\n{written}\n</parameter></function>"
        assert [json.loads(call.arguments) for call in find_calls(tags, {"send"})[1]] == [{"text": written}]


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(answers())
def test_the_calls_that_end_what_is_said_are_found_and_no_others(answer: Answer) -> None:
    check_calls(answer)


class Weather(BaseModel):
    city: str
    note: str = ""


JSON = '{"city": "Rome", "note": ""}'


@pytest.mark.parametrize("features", [[], [CallsInText()]])
@pytest.mark.parametrize(("opening", "closing"), EVERY)
async def test_output_is_read_after_a_thought(opening: str, closing: str, features: list[Any]) -> None:
    agent = Agent(name="a", model="scripted:test", output=ProviderStrategy(Weather), features=features)
    for thought in (f'{opening}Perhaps {{"city": "Oslo"}}.{closing}', f"{opening}```json\n{JSON}\n```\n{closing}"):
        run = await run_agent(agent, "Go.", model=ScriptedModel(f"{thought}\n{JSON}"))
        assert (run.output, len(run.steps)) == (Weather(city="Rome"), 1)
    run = await run_agent(agent, "Go.", model=ScriptedModel(f"{opening}{JSON}", JSON))
    assert len(run.steps) == 2  # what is only thought of is no output


@pytest.mark.parametrize(
    "note", ["<think>", "a </think> b", "[THINK]", "<|channel|>analysis<|message|>", "Here is my response:"]
)
async def test_a_marker_in_the_output_is_text(note: str) -> None:
    agent = Agent(name="a", model="scripted:test", output=ProviderStrategy(Weather))
    for before in ("", "<think>Well.</think>", "```json\n"):
        text = before + json.dumps({"city": "Rome", "note": note}) + ("\n```" if "json" in before else "")
        run = await run_agent(agent, "Go.", model=ScriptedModel(text))
        assert (run.output, len(run.steps)) == (Weather(city="Rome", note=note), 1)


async def test_calls_in_a_text_that_was_cut_off_are_told_and_not_run() -> None:
    """The beginning of a thought may be in the prompt, and its end beyond the limit."""
    paid, run = await paid_by(Say(f"Perhaps {CALL}", finish_reason="length"), "Shall I pay?")
    assert paid == []
    assert [call.result.error.kind for call in run.calls if call.result and call.result.error] == ["truncated_call"]


@pytest.mark.parametrize("before", ["", "<think>", "</think>", "<|think|>"])
@pytest.mark.parametrize("unit", ["<think>", "</think>", "{", "[", "{<think>}", '"{"', "```a\n", "<parameter=a>", "a='", "<|channel|>analysis", "</answer>", "<a_"])  # fmt: skip
def test_time_is_bounded_by_the_length_of_the_text(unit: str, before: str) -> None:
    text = before + unit * (50_000 // len(unit)) + "<think>"
    reader = _Reader(text)
    reader.spoken()
    assert reader.wasted <= (MAX_WASTED + 1) * len(text)
    assert len(without_thoughts(text)) == len(text)


def test_each_marker_has_a_source() -> None:
    assert all(marker.source and re.compile(marker.opening) for marker in MARKERS)
