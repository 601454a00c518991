"""`ClearToolResults`: which results a request leaves out, when that changes, and that nothing else loses them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Call, ClearToolResults, Compaction, DeclarationError, Image, Message, Say, ToolMessage, tool
from mulligan.testing import ScriptedModel, run_agent
from tests.support.content_files import png

LONG, PAGES = "x" * 2_000, 24
LEFT_OUT = "[Left out to save space: the result of `read_page`, 2,003 characters. If you still need it, get it again.]"


@tool
def read_page(number: int) -> str:
    """Read a page of 500 tokens."""
    return f"{number:02} {LONG}"


@tool
def read_rules(number: int) -> str:
    """Read the rules."""
    return f"{number:02} rules {LONG}"


@tool
def see(number: int) -> list[Any]:
    """See a page."""
    return [f"A page. {LONG}", Image.from_bytes(png(1_500, seed=number))]


def agent(*features: Any, **options: Any) -> Agent:
    tools = options.get("tools", [read_page, read_rules, see])
    return Agent(name="reader", model="scripted:test", tools=tools, features=features, max_steps=99)


class Sent:
    """A model that reads page after page, and remembers each conversation that it was sent."""

    def __init__(self, pages: int = PAGES, name: str = "read_page") -> None:
        self.conversations: list[list[Message]] = []
        self.model = ScriptedModel(*[self._turn(n, name) for n in range(pages)], self._end, is_strict=False)

    def _turn(self, number: int, name: str) -> Any:
        def turn(messages: Sequence[Message]) -> Say:
            self.conversations.append(list(messages))
            return Say(calls=[Call(name, {"number": number})])

        return turn

    def _end(self, messages: Sequence[Message]) -> Say:
        self.conversations.append(list(messages))
        return Say("Read.")

    def cleared(self) -> list[int]:
        """How many results each request left out."""
        return [sum(message.text.startswith("[Left out") for message in sent) for sent in self.conversations]


def results(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


async def test_old_results_are_left_out_of_requests_only() -> None:
    sent = Sent()
    run = await run_agent(agent(ClearToolResults(at=4_000)), "Read.", model=sent.model)
    assert run.output == "Read."
    last = results(sent.conversations[-1])
    number = last.count(LEFT_OUT)
    assert 0 < number <= PAGES - 3
    assert last == [LEFT_OUT] * number + [f"{n:02} {LONG}" for n in range(number, PAGES)]
    assert results(run.messages) == [f"{n:02} {LONG}" for n in range(PAGES)]
    assert [call.result and call.result.text for call in run.calls] == results(run.messages)
    assert [message.role for message in sent.conversations[-1]] == [message.role for message in run.messages[:-1]]


async def test_what_is_sent_changes_rarely_and_then_for_many_results() -> None:
    sent = Sent()
    await run_agent(agent(ClearToolResults(at=4_000)), "Read.", model=sent.model)
    counts = sent.cleared()
    changes = [(before, after) for before, after in itertools.pairwise(counts) if before != after]
    assert 2 <= len(changes) <= PAGES // 3
    assert all(after - before >= 3 for before, after in changes)
    # Nothing is left out below the limit, and a conversation never has much more than it.
    assert counts[:7] == [0] * 7
    assert max(sum(len(message.text) for message in each) for each in sent.conversations) < 4_000 * 4 + 3 * 2_100


async def test_three_results_are_left_out_at_once_at_least() -> None:
    """A quarter of this limit is one result."""
    sent = Sent()
    await run_agent(agent(ClearToolResults(at=2_000)), "Read.", model=sent.model)
    counts = sent.cleared()
    assert {after - before for before, after in itertools.pairwise(counts)} == {0, 3}


@pytest.mark.parametrize("keep", [1, 5])
async def test_the_newest_steps_keep_their_results(keep: int) -> None:
    sent = Sent()
    await run_agent(agent(ClearToolResults(at=4_000, keep_steps=keep)), "Read.", model=sent.model)
    assert any(sent.cleared())
    for conversation in sent.conversations:
        assert LEFT_OUT not in results(conversation)[-keep:]


async def test_excepted_tools_keep_their_results() -> None:
    sent = Sent(name="read_rules")
    features = ClearToolResults(at=2_000, except_tools=["read_rules"])
    await run_agent(agent(features), "Read.", model=sent.model)
    assert not any(sent.cleared())


async def test_searches_for_tools_do_not_count_as_they_are_never_left_out() -> None:
    """Three results would be left out at once: here is one that can be."""

    @tool(on_demand=True, description=f"Read the weather. {LONG}")
    def get_weather(city: str) -> str:
        return city

    sent: list[list[str]] = []

    def turn(name: str, arguments: dict[str, Any]) -> Any:
        def say(messages: Sequence[Message]) -> Say:
            sent.append(results(messages))
            return Say(calls=[Call(name, arguments)] if name else [], text="" if name else "Read.")

        return say

    finds = [turn("find_tools", {"query": "weather"})] * 4
    model = ScriptedModel(turn("read_page", {"number": 0}), *finds, turn("", {}))
    clearing = ClearToolResults(at=1_000, keep_steps=1)
    await run_agent(agent(clearing, tools=[read_page, get_weather]), "Read.", model=model)
    assert [each[0][:2] for each in sent[1:]] == ["00"] * 5
    assert len(sent[-1][-1]) > 2_000


async def test_one_result_larger_than_the_limit_is_left_out_alone() -> None:
    @tool(max_result_chars=200_000)
    def dump(number: int) -> str:
        """Read it all."""
        return f"{number}" * 100_000

    sent = Sent(pages=4, name="dump")
    await run_agent(agent(ClearToolResults(at=4_000, keep_steps=1), tools=[dump]), "Go.", model=sent.model)
    assert sent.cleared() == [0, 0, 1, 2, 3]


async def test_images_are_left_out_and_short_results_stay(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(pages=6, name="see")
    await run_agent(agent(ClearToolResults(at=1_000, keep_steps=1)), "Look.", model=sent.model)
    first = sent.conversations[-1][2]
    assert isinstance(first, ToolMessage)
    assert (first.content, "and 1 image or file" in first.text) == (None, True)

    @tool
    def ping() -> str:
        """Answer."""
        return "pong"

    calls = [Say(calls=[Call("ping", {}) for _ in range(60)])] * 3
    model = ScriptedModel(*calls, lambda messages: Say(str(set(results(messages)))), is_strict=False)
    run = await run_agent(agent(ClearToolResults(at=1_000, keep_steps=1), tools=[ping]), "Go.", model=model)
    assert run.output == "{'pong'}"


async def test_a_conversation_that_is_cleared_in_time_is_not_summarized() -> None:
    """Clearing counts before the compaction does; where it is not enough, the older steps are summarized as well."""
    enough, alone = Sent(), Sent()
    both = [ClearToolResults(at=4_000), Compaction(at=7_000)]
    run = await run_agent(agent(*both), "Read.", model=enough.model)
    assert (run.output, [step for step in run.steps if step.compaction]) == ("Read.", [])
    summarized = await run_agent(agent(Compaction(at=7_000)), "Read.", model=alone.model)
    assert [step for step in summarized.steps if step.compaction]

    tight = Sent()
    run = await run_agent(agent(ClearToolResults(at=4_000), Compaction(at=4_100)), "Read.", model=tight.model)
    assert (run.output, any(tight.cleared())) == ("Read.", True)
    assert results(run.messages) == [f"{n:02} {LONG}" for n in range(PAGES)]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"at": 999}, "at is 999; it must be a whole number of tokens, 1,000 or more"),
        ({"at": 2_000.0}, "at is 2000.0"),
        ({"keep_steps": 0}, "keep_steps is 0; it must be a whole number, 1 or more"),
        ({"except_tools": "read_page"}, "except_tools must be a list of at most 100 names"),
        ({"except_tools": ["read_pages"]}, "except_tools names 'read_pages', which is no tool of the agent"),
    ],
)
def test_a_wrong_declaration_is_refused_with_a_sentence(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(DeclarationError, match=fault):
        agent(ClearToolResults(**options))
    assert (ClearToolResults().at, ClearToolResults().keep_steps) == (60_000, 3)


async def test_the_test_on_the_page_passes() -> None:
    """docs/clearing.md."""
    text = (Path(__file__).parents[2] / "docs/clearing.md").read_text()
    [source] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    page: dict[str, Any] = {}
    exec(compile(source, "docs/clearing.md", "exec", dont_inherit=True), page)
    assert await page["test_a_long_book"]() is None
