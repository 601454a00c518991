"""Compaction: where a conversation is cut, what is kept, and what the model is sent after it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio import workflow

from mulligan import (
    Agent,
    AssistantMessage,
    Call,
    CallsInText,
    Compaction,
    DeclarationError,
    DurableAgent,
    ErrorInfo,
    Message,
    Say,
    ToolCall,
    ToolContext,
    ToolMessage,
    ToolStrategy,
    Usage,
    UserMessage,
    tool,
)
from mulligan.activities.compaction.summary_prompt import transcript
from mulligan.cli._steps import compaction_line
from mulligan.testing import ScriptedModel, run_agent, run_workflow
from mulligan.values import StepCompaction
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.shorten import shorten_middle
from mulligan.workflows.compaction.compaction import place_of_cut
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import ConversationSummary
from mulligan.workflows.conversation.token_count import tokens

ROOT = Path(__file__).parents[2]
[PAGE] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/compaction.md").read_text(), re.DOTALL)
LIMIT = 1_000
GO = "Find the heron."
KEYS: list[str] = []


@tool
def look(n: int, ctx: ToolContext) -> str:
    """Look at a page of 800 bytes."""
    KEYS.append(ctx.idempotency_key)
    return f"{n}: " + "x" * 800


def agent(**options: Any) -> Agent:
    return Agent(
        **{"name": "looker", "model": "scripted:test", "tools": [look], "features": [Compaction(at=LIMIT)], **options}
    )


def looks(count: int, start: int = 0, **options: Any) -> list[Say]:
    return [Say(calls=[Call("look", {"n": n}, **options)]) for n in range(start, start + count)]


def summaries(*answers: Any) -> ScriptedModel:
    return ScriptedModel(*answers, name="sums", is_strict=False)


def build_conversation(sizes: list[int], *, prompt: str = GO, usage: int = 0) -> Conversation:
    """A conversation of steps with a call each, with results of these sizes."""
    conversation = Conversation()
    conversation.append_request([UserMessage(role="user", text=prompt)])
    for n, size in enumerate(sizes):
        call = ToolCall(id=f"c{n}", name="look", arguments="{}")
        answer = AssistantMessage(role="assistant", tool_calls=[call])
        conversation.begin_step(answer, [PreparedCall(arguments={})], Usage(input_tokens=usage), "m")
        conversation.end_step([ToolMessage(role="tool", call_id=call.id, name="look", text="x" * size)])
    return conversation


def summary(summary: str = "so far", answers: int = 1) -> ConversationSummary:
    return ConversationSummary(task=GO, heading="[Summed up]", summary=summary, answers=answers)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 3_000), max_size=12), st.integers(1_000, 4_000), st.integers(0, 2_000))
def test_a_cut_separates_no_call_from_its_result(sizes: list[int], limit: int, prompt: int) -> None:
    conversation = build_conversation(sizes, prompt="p" * prompt)
    cut = place_of_cut(conversation, limit)
    if cut is None:
        return
    kept, gone = conversation.messages[cut:], conversation.messages[:cut]
    assert isinstance(kept[0], AssistantMessage)
    calls = {call.id for message in kept if isinstance(message, AssistantMessage) for call in message.tool_calls}
    assert calls == {message.call_id for message in kept if isinstance(message, ToolMessage)}
    # A quarter of the limit and the newest step are kept; less than a quarter is not worth a summary.
    assert conversation.size(cut) <= limit or len(kept) == 2
    assert conversation.size(1, cut) >= limit
    assert len(gone) > 1


def test_there_is_no_cut_if_too_little_would_be_removed() -> None:
    assert place_of_cut(build_conversation([]), LIMIT) is None
    assert place_of_cut(build_conversation([9_000]), LIMIT) is None
    assert place_of_cut(build_conversation([50, 9_000]), LIMIT) is None
    assert place_of_cut(build_conversation([50, 9_000], prompt="p" * 9_000), LIMIT) is None
    assert place_of_cut(build_conversation([1_500, 9_000]), LIMIT) == 3
    assert place_of_cut(build_conversation([9_000] + [50] * 3), LIMIT) == 3


def test_tokens_are_the_providers_count_and_an_estimate_of_newer_messages() -> None:
    counted, uncounted = build_conversation([4_000, 4_000], usage=700), build_conversation([4_000, 4_000])
    assert 1_700 <= tokens(counted) <= 1_730
    assert 2_000 <= tokens(uncounted) <= 2_150
    assert tokens(build_conversation([], prompt="p" * 4_000)) in range(1_000, 1_030)


@pytest.mark.parametrize("carry", [False, True])
def test_a_compaction_changes_the_view_and_not_the_log(carry: bool) -> None:
    """Messages and steps keep their numbers, in the run and over the chain; workers see the summary and the rest."""
    conversation = build_conversation([100] * 6)
    whole, steps = list(conversation.messages), conversation.step_page(0, 9, 10**6)
    before = conversation.ref()
    conversation.replace_by_summary(summary(answers=4), 9)
    if carry:
        conversation = Conversation.load(json.loads(json.dumps(conversation.dump("run-1"))))
    assert conversation.ref() != before
    assert conversation.ref().count == 5
    assert conversation.request_text == GO
    assert conversation.view_page(0, 99, 10**6) == [summary().message, *whole[9:]]
    assert conversation.view_page(3, 1, 10**6) == whole[11:12]
    assert conversation.count_at_answer == 4
    assert conversation.new_since(conversation.count_at_answer, 10**6) == whole[12:]
    assert conversation.new_since(0, 10**6) == [summary().message, *whole[9:]]
    assert (conversation.first_message, conversation.first_step) == ((9, 4) if carry else (0, 0))
    assert conversation.page(9, 99, 10**6) == whole[9:]
    assert conversation.step_page(4, 9, 10**6) == steps[4:]
    if not carry:
        assert conversation.page(0, 99, 10**6) == whole
        assert conversation.step_page(0, 9, 10**6) == steps
    conversation.append(UserMessage(role="user", text="More."))
    assert conversation.view_page(5, 9, 10**6) == [conversation.messages[-1]]


def test_a_carried_conversation_names_the_run_that_has_the_earlier_messages() -> None:
    """It is the latest run that dropped messages, and not one that had none to drop."""
    conversation = build_conversation([100] * 4)
    conversation.replace_by_summary(summary(), 3)
    conversation = Conversation.load(conversation.dump("run-1"))
    assert conversation.earlier is not None
    assert (conversation.earlier.messages, conversation.earlier.steps, conversation.earlier.run_id) == (3, 1, "run-1")
    conversation = Conversation.load(conversation.dump("run-2"))
    assert conversation.earlier is not None
    assert conversation.earlier.run_id == "run-1"
    conversation.replace_by_summary(summary(), 2)
    conversation = Conversation.load(conversation.dump("run-3"))
    assert conversation.earlier is not None
    assert (conversation.earlier.messages, conversation.earlier.steps, conversation.earlier.run_id) == (5, 2, "run-3")
    assert conversation.request_span == (0, 1)


def test_the_request_is_the_users_messages_that_the_turn_began_with() -> None:
    """Feedback at the end of the turn before is a user message as well, but not part of the request."""
    conversation = build_conversation([10])
    conversation.append(UserMessage(role="user", text="You answered in plain text."))
    conversation.append_request([UserMessage(role="user", text="Now"), UserMessage(role="user", text="the crane.")])
    assert conversation.request_span == (4, 6)
    conversation.append_request(
        [UserMessage(role="user", text="Go on."), conversation.messages[1], conversation.messages[2]]
    )
    assert conversation.request_span == (6, 7)


def test_without_a_compaction_the_carried_state_has_no_summary_fields() -> None:
    state = build_conversation([100]).dump("run-1")
    assert state.keys() == {"messages", "steps", "request_span", "compact_again_at", "events"}
    assert Conversation.load(state).messages == build_conversation([100]).messages


def test_a_transcript_that_is_too_long_shortens_its_longest_texts() -> None:
    """Long results lose their middle; the user's messages stay."""
    answer = AssistantMessage(
        role="assistant", text="so", tool_calls=[ToolCall(id="1", name="look", arguments='{"n": 1}')]
    )
    wrong = ErrorInfo(kind="tool_error", message="no")
    messages: list[Message] = [
        UserMessage(role="user", text="u" * 2_000),
        answer,
        ToolMessage(role="tool", call_id="1", name="look", text="begin" + "x" * 90_000 + "end", error=wrong),
    ]
    text = transcript(messages, 10_000)
    assert len(text) < 10_000
    assert "u" * 2_000 in text
    assert 'calls look {"n": 1}' in text
    assert "[result of look, which went wrong (tool_error)]\nbegin" in text
    assert text.endswith("end")
    assert "x" * 90_000 in transcript(messages, 10**6)
    results = [ToolMessage(role="tool", call_id=str(n), name="look", text="x" * 5_000) for n in range(6)]
    text = transcript([messages[0], *results], 10_000)
    assert "u" * 2_000 in text
    assert text.count("x" * 500) == 12


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shorten_middle("abc", 3) == "abc"
    assert shorten_middle("a" * 50 + "b" * 50, 10) == "aaaaa… (90 characters left out here) …bbbbb"


@pytest.mark.parametrize("wrong", [0, 999, -1, 2_000.0, "2000", True])
def test_an_invalid_limit_is_refused_at_declaration(wrong: Any) -> None:
    with pytest.raises(
        DeclarationError, match=r"Compaction: at is .*; it must be a whole number of tokens, 1,000 or more"
    ):
        agent(features=[Compaction(at=wrong)])


def test_an_invalid_model_is_refused_at_declaration() -> None:
    with pytest.raises(DeclarationError, match="Compaction: the model is 'gpt'; it must be one of"):
        agent(features=[Compaction(at=LIMIT, model="gpt")])


async def test_call_ids_stay_unique_after_a_compaction() -> None:
    """The model gives every call the same id, and no longer sees the earlier ones."""
    KEYS.clear()
    model = ScriptedModel(*looks(14, id="same"), "done")
    run = await run_agent(agent(), GO, model=model)
    assert sum(step.compaction is not None for step in run.steps) >= 2
    ids = [call.id for call in run.calls]
    assert len(set(ids)) == len(set(KEYS)) == 14
    assert all(len(each) <= 40 for each in ids)
    assert [call.result and call.result.text.split(":")[0] for call in run.calls] == [str(n) for n in range(14)]


async def test_the_model_is_sent_request_summary_and_newest_steps() -> None:
    """The next summary is written from the one before and the steps since."""
    seen: list[list[Message]] = []

    def done(messages: Any) -> str:
        seen.append(list(messages))
        return "done"

    summary_prompts: list[str] = []

    def sum_up(messages: Any) -> str:
        summary_prompts.append(messages[0].text)
        return f"Summary {len(summary_prompts)}."

    sums = ScriptedModel(*[sum_up] * 9, name="sums", is_strict=False)
    run = await run_agent(
        agent(features=[Compaction(at=LIMIT, model="scripted:sums")]), GO, model=ScriptedModel(*looks(9), done), scripts=[sums]
    )  # fmt: skip
    assert [len(summary_prompts), run.result and run.result.status] == [2, "completed"]
    assert summary_prompts[0].startswith(f"[user]\n{GO}\n\n[assistant]\ncalls look")
    assert "Summary 1." in summary_prompts[1]
    for text, step in zip(summary_prompts, [step for step in run.steps if step.compaction], strict=True):
        newest = step.step - 2
        assert f"[result of look]\n{newest - 1}: x" in text
        assert f"[result of look]\n{newest}: x" not in text
    [messages] = seen
    assert isinstance(messages[0], UserMessage)
    assert messages[0].text.startswith(f"{GO}\n\n[")
    assert messages[0].text.endswith("\n\nSummary 2.")
    assert [message.role for message in messages[1:]] == ["assistant", "tool"] * ((len(messages) - 1) // 2)
    assert len(messages) < 9
    assert [message.role for message in run.messages] == ["user", *["assistant", "tool"] * 9, "assistant"]


async def test_a_long_input_is_summarized_before_the_first_step() -> None:
    """The messages of a run's input may be more than the model can read. The run's request stays unchanged."""
    summary_prompts: list[str] = []
    sent: list[list[Message]] = []

    def sum_up(messages: Any) -> str:
        summary_prompts.append(messages[0].text)
        return "Pages were read."

    def done(messages: Any) -> str:
        sent.append(list(messages))
        return "done"

    before = build_conversation([800] * 8).messages
    run = await run_agent(
        agent(features=[Compaction(at=LIMIT, model="scripted:sums")]), "Now the crane.", messages=before,
        model=ScriptedModel(*["not said"] * 8, done, is_strict=False), scripts=[ScriptedModel(sum_up, name="sums")],
    )  # fmt: skip
    assert run.output == "done"
    [step] = run.steps
    assert step.compaction is not None
    assert step.compaction.messages == len(before) - len(sent[0][1:-1])
    assert [summary_prompts[0].startswith(f"[user]\n{GO}"), "crane" in summary_prompts[0]] == [True, False]
    assert sent[0][0].text.endswith("\n\nPages were read.")
    assert sent[0][1:-1] == before[-len(sent[0][1:-1]) :]
    assert [message.role for message in sent[0]] == ["user", "assistant", "tool", "user"]
    assert sent[0][-1].text == "Now the crane."
    assert run.messages[:-2] == before


async def test_a_request_alone_is_not_summarized() -> None:
    """However long it is, no message before it could be removed."""
    run = await run_agent(agent(), "Find the heron. " * 1_000, model=ScriptedModel("done"))
    assert [step.compaction for step in run.steps] == [None]


async def test_a_long_request_keeps_its_beginning_and_its_end() -> None:
    sent: list[str] = []

    def done(messages: Any) -> str:
        sent.append(messages[0].text)
        return "done"

    prompt = f"Find the heron. {'y' * 9_000} It is grey."
    await run_agent(agent(), prompt, model=ScriptedModel(*looks(3), done))
    assert sent[0].startswith("Find the heron. yyy")
    assert "It is grey.\n\n[" in sent[0]
    assert len(sent[0]) < 4_000


async def run_with_summaries(answer: Any) -> Any:
    return await run_agent(
        agent(features=[Compaction(at=2_000, model="scripted:sums")]),
        GO,
        model=ScriptedModel(*looks(16), "done"),
        scripts=[summaries(*[answer] * 9)],
    )


NO_SUMMARY = {
    "empty_summary": Say("  "),
    "refused": Say("I cannot.", finish_reason="refusal"),
    "truncated_summary": Say("Read so", finish_reason="length"),
    "long_summary": Say("z" * 20_000),
}


@pytest.mark.parametrize("kind", NO_SUMMARY)
async def test_a_run_goes_on_without_a_summary(kind: str) -> None:
    """It keeps all of its messages, and does not try again at each step."""
    run = await run_with_summaries(NO_SUMMARY[kind])
    assert run.output == "done"
    failed_compactions = [step.compaction for step in run.steps if step.compaction]
    assert {one.error.kind for one in failed_compactions} == {kind}
    assert {one.text for one in failed_compactions} == {""}
    # Of 3,600 tokens in all: at 2,000, and after each 500 more.
    assert 3 <= len(failed_compactions) <= 4
    [*spans] = [span for span in run.spans if "mulligan.compaction" in span.attributes]
    assert [(span.status, span.attributes["error.type"]) for span in spans] == [("ERROR", kind)] * len(
        failed_compactions
    )
    spent = sum(
        step.usage.total_tokens + (step.compaction.usage.total_tokens if step.compaction else 0) for step in run.steps
    )
    assert run.result.usage.total_tokens == spent


async def test_reasoning_is_not_part_of_a_summary() -> None:
    run = await run_with_summaries("<think>What was it?</think>\nThree pages.")
    assert next(step.compaction.text for step in run.steps if step.compaction) == "Three pages."


@workflow.defn
class TwoTurns:
    """Two turns of one conversation."""

    @workflow.run
    async def run(self) -> list[Any]:
        looker = DurableAgent("looker")
        results = [await looker.run(prompt) for prompt in ("Find the heron.", "Now the crane.")]
        return [results[1].output, looker.conversation.request_span]


async def test_the_request_of_the_newest_turn_stays_unchanged() -> None:
    """The requests of earlier turns are summarized."""
    sent: list[str] = []
    summary_prompts: list[str] = []

    def done(messages: Any) -> str:
        sent.append(messages[0].text)
        return "done"

    def sum_up(messages: Any) -> str:
        summary_prompts.append(messages[0].text)
        return "So far."

    model = ScriptedModel(*looks(6), done, *looks(6, 6), done, name="test")
    await run_workflow(
        TwoTurns, agents=[agent(features=[Compaction(at=LIMIT, model="scripted:sums")])],
        models=[model, ScriptedModel(*[sum_up] * 9, name="sums", is_strict=False)],
    )  # fmt: skip
    assert sent[0].startswith("Find the heron.\n\n[")
    assert sent[1].startswith("Now the crane.\n\n[")
    assert "heron" not in sent[1]
    assert any("Find the heron." in text and "Now the crane." in text for text in summary_prompts)


class Found(BaseModel):
    bird: str


async def test_structured_output_is_validated_after_a_compaction() -> None:
    """A missing output gets feedback, and a valid one is accepted."""
    model = ScriptedModel(*looks(6), "A heron.", Say(calls=[Call("Found", {"bird": "heron"})]))
    run = await run_agent(agent(output=ToolStrategy(Found)), GO, model=model)
    assert run.output == Found(bird="heron")
    assert run.result is not None
    assert run.result.recovered_failures == 1
    assert any(step.compaction for step in run.steps)


async def test_calls_in_text_are_found_after_a_compaction() -> None:
    written = [Say(f'```json\n{{"name": "look", "arguments": {{"n": {n}}}}}\n```') for n in range(12)]
    run = await run_agent(
        agent(features=[CallsInText(), Compaction(at=2_000)]), GO, model=ScriptedModel(*written, "done")
    )
    assert run.output == "done"
    assert len({call.id for call in run.calls}) == 12
    assert any(step.compaction for step in run.steps)


async def test_feedback_does_not_refer_to_a_summarized_mistake() -> None:
    """Feedback says that a call was made before only if the model can still see it."""
    wrong = Say(calls=[Call("look", {"m": 1})])
    run = await run_agent(agent(), GO, model=ScriptedModel(wrong, wrong, *looks(6), wrong, "done"))
    feedback = [call.result.text for call in run.calls if call.result and call.result.error]
    assert ["You made this same call before" in text for text in feedback] == [False, True, False]


def test_a_compaction_has_one_line_in_the_terminal() -> None:
    assert (
        compaction_line(StepCompaction(messages=7, text="Pages\nwere read.")).plain
        == "∑ 7 messages summed up: Pages were read."
    )
    failed = StepCompaction(messages=7, error=ErrorInfo(kind="refused", message="No."))
    assert compaction_line(failed).plain == "✗ summing up 7 messages failed: refused: No."


async def test_the_example_of_the_compaction_page_passes() -> None:
    """docs/compaction.md: its test passes."""
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(PAGE, "docs/compaction.md", "exec", dont_inherit=True), page)
    assert "assert " in PAGE
    await page["test_a_long_book"]()
