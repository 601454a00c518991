"""The recovery matrix: what was observed for each row, and the page in docs/ that is printed from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.support.lab import DONE, Lab, Ran
from tests.support.memory_lab import MemoryLab
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

INTRODUCTION = """# What happens after each kind of mistake

Printed from the tests (`make docs`): each row was run on a real Temporal server, with the real `openai` client and an OTLP
receiver. No row fails a run: each is `completed`, unless the row says otherwise. `runs`: how often a tool was started. `span`: the
`ai.toolCall` span; a kind stands for status ERROR with `mulligan.recovered=true`. Texts are cut (`…`); most go on with what the model
sent and with the schema.
"""
LONGEST_TEXT = 110
"""Characters of a text that the page shows."""
_SEEN: dict[tuple[str, str, str], Ran] = {}


@dataclass
class Row:
    """One mistake (or what looks like one): the `turns` of the model, and the expected outcome of the run.

    `kinds`: the error kind of each call, then of each rejected answer. `told`: a part of the feedback for each call.
    """

    name: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    kinds: Sequence[str | None] = ()
    told: Sequence[str] = ()
    ran: int = 0
    repairs: tuple[str, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    agent: str = "shop"
    output: Any = "done"
    api: str = "openai-chat"

    @property
    def said(self) -> list[Turn]:
        """The turns of the model: those of the row, or one with its calls and one that ends the run."""
        return self.turns or [Turn(calls=[(name, raw, None) for name, raw in self.calls]), DONE]


async def observe(lab: Lab | MemoryLab, row: Row, api: str, **given: Any) -> Ran:
    """Run a row, once a session for each API and agent. `given`: more of the run's input."""
    key = (row.name, api, row.agent)
    if key not in _SEEN:
        # By the requests so far: the conversation may have begun before the run.
        nth = count()
        turns = (lambda _body, _nth: row.said[next(nth)]) if given else row.said
        _SEEN[key] = await lab.run(turns, agent=row.agent, api=api, **given)
    return _SEEN[key]


async def check(lab: Lab | MemoryLab, row: Row, api: str, **given: Any) -> Ran:
    """Run a row, and assert its outcome: each call has one result, each mistake one error span, and the run completes."""
    ran = await observe(lab, row, api, **given)
    assert ran.result["status"] == "completed"
    assert ran.result["output"] == "done"
    assert [call["result"]["error"] and call["result"]["error"]["kind"] for call in ran.calls] == row.kinds
    for seen, told in zip(ran.calls, row.told, strict=True):
        assert told in seen["result"]["text"]
        assert "Traceback" not in seen["result"]["text"]
        assert "errors.pydantic.dev" not in seen["result"]["text"]
    for seen, (_, raw) in zip(ran.calls, row.calls, strict=True):
        kept = seen["raw_arguments"]
        assert kept == raw or (kept[:900] == raw[:900] and "more characters" in kept)
    assert len(RAN[ran.id]) == row.ran
    assert tuple(repair["by"] for call in ran.calls for repair in call["repairs"]) == row.repairs
    failures = [kind for kind in row.kinds if kind]
    assert ran.result["recovered_failures"] == len(failures)
    recovered = [span for span in ran.spans_of("ai.toolCall") if span.attributes["mulligan.recovered"]]
    assert sorted(span.attributes["error.type"] for span in recovered) == sorted(failures)
    for span in recovered:
        assert span.status == "ERROR"
        [(name, event)] = span.events
        assert name == "exception"
        assert event["exception.message"]
    told_texts = [call["result"]["text"] for call in ran.calls]
    assert all(any(span.attributes["ai.toolCall.error"] in text for text in told_texts) for span in recovered)
    unset = [span for span in ran.spans_of("ai.toolCall") if span.status == "UNSET"]
    assert len(unset) == row.kinds.count(None)
    return ran


HEAD = "| what happens | the model reads | runs | span |\n|---|---|---|---|\n"


async def section(lab: Lab, title: str, rows: Sequence[Row]) -> str:
    """A section of the page: a table of these rows."""
    gate = asyncio.Semaphore(6)

    async def seen(row: Row) -> Ran:
        async with gate:
            return await observe(lab, row, row.api)

    all_seen = await asyncio.gather(*(seen(row) for row in rows))
    lines = (_line(row, ran) for row, ran in zip(rows, all_seen, strict=True) if not _is_right_at_once(ran))
    return f"## {title}\n\n{HEAD}{''.join(lines)}"


def _is_right_at_once(ran: Ran) -> bool:
    """A typed answer without a mistake, a repair or a call: it teaches nothing here."""
    is_faulty = any(call["result"]["error"] or call["repairs"] for call in ran.calls) or ran.rejected
    return not is_faulty and not RAN[ran.id] and ran.result["status"] == "completed"


def _line(row: Row, ran: Ran) -> str:
    wrong = [call["result"]["text"] for call in ran.calls if call["result"]["error"]]
    messages = wrong or [call["result"]["text"] for call in ran.calls[:1]]
    if ran.rejected:
        messages = [*wrong, *ran.rejected]
    spans = [
        f"`{span.attributes['error.type']}`" if span.status == "ERROR" else "unset"
        for span in ran.spans_of("ai.toolCall")
        if span.status == "UNSET" or span.attributes["mulligan.recovered"]
    ]
    repairs = [repair["by"] for call in ran.calls for repair in call["repairs"]]
    happens = f"**{row.name}**<br>{_said(row.said[0])}" + (f"<br>repaired by {', '.join(repairs)}" if repairs else "")
    if (status := ran.result["status"]) != "completed":
        happens += f"<br>the run is `{status}`"
    cells = [happens, "<br>".join(dict.fromkeys(map(_told, messages))), str(len(RAN[ran.id])), ", ".join(spans)]
    return "| " + " | ".join(cells) + " |\n"


def _said(turn: Turn) -> str:
    said = [f"{name[:60]}({raw})" for name, raw, *_ in turn.calls]
    if turn.text is not None:
        said.insert(0, turn.text or "(nothing)")
    cut = f" (cut off: {turn.finish_reason})" if turn.finish_reason in ("length", "content_filter") else ""
    return "<br>".join(f"`{_shown(each, 60)}`" for each in said) + cut


def _told(text: str) -> str:
    told, more, _ = text.partition("\nYou sent: ")
    return _shown(told, LONGEST_TEXT) + ("…" if more and len(told) <= LONGEST_TEXT else "")


def _shown(text: str, longest: int) -> str:
    text = text if len(text) <= longest else text[:longest] + "…"
    text = "".join(each if each.isprintable() or each == "\n" else "�" for each in text)
    return text.replace("|", "\\|").replace("`" * 3, "'''").replace("\n", " ⏎ ").strip()
