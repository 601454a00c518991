"""Runs of random calls."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.support.lab import DONE, Lab
from tests.support.memory_lab import MemoryLab
from tests.support.openai_turn import Turn

NAMES = [
    "click",
    "clik",
    "",
    "__init__",
    "search_orders",
    "now",
    "x" * 300,
    "кл ик",
    "give",
    "refuse",
    '"',
    "functions.click",
]
IDS = [None, "same", ""]
"""Those that OpenAI neither gives nor takes are in `tests/unit/test_own_ids.py`: an endpoint gets its own back."""
TEXTS = ["", "a", "#b", "\0", "𝄞", "'", '"', "\\", "{", "x" * 2000, "```json", "</tool>"]
KEYS = ["selector", "element", "customer", "limit", "what", "", 'a"b']


def value(dice: random.Random, depth: int = 0) -> Any:
    """Any JSON value, and NaN and Infinity, which only Python accepts."""
    kind = dice.randrange(12)
    if kind < 3:
        return dice.choice([None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf")])
    if kind < 6 or depth > 4:
        return dice.choice(TEXTS)
    if kind < 9:
        return [value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(KEYS): value(dice, depth + 1) for _ in range(dice.randrange(4))}


def arguments(dice: random.Random) -> str:
    """Raw arguments: valid, cut off, with wrong quotes, in a code fence, repeated, or encoded twice."""
    raw = json.dumps(value(dice), ensure_ascii=dice.random() < 0.5)
    spoil = [
        lambda: raw[: dice.randrange(len(raw) + 1)],
        lambda: repr(value(dice)),
        lambda: f"```json\n{raw}\n```",
        lambda: json.dumps(raw),
        lambda: raw.replace('"', "'"),
        lambda: raw + raw,
        lambda: raw.replace("a", "\\ud800"),
        lambda: raw,
    ]
    return dice.choice(spoil)()


async def check_random_calls(lab: Lab | MemoryLab, seed: int) -> None:
    """Every failure is returned to the model and counted; the provider refuses no request."""
    dice = random.Random(seed)
    api = ("openai", "openai-chat")[seed % 2]
    turns = [
        Turn(
            text=dice.choice([None, "so"]),
            calls=[(dice.choice(NAMES), arguments(dice), dice.choice(IDS)) for _ in range(dice.randrange(1, 12))],
        )
        for _ in range(8)
    ]
    ran = await lab.run([*turns, DONE], api=api, max_steps=30)
    assert ran.result["status"] == "completed"
    assert len(ran.calls) == sum(len(turn.calls) for turn in turns)
    told = [call for call in ran.calls if call["result"]["error"]]
    recovered = [span for span in ran.spans_of("ai.toolCall") if span.attributes["mulligan.recovered"]]
    assert ran.result["recovered_failures"] == len(told) == len(recovered)
    assert len({span.span_id for span in ran.spans}) == len(ran.spans)
    assert len({call["id"] for call in ran.calls}) == len(ran.calls)
