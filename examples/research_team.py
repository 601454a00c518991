"""A team: an editor gives three questions at once to a researcher, which has foreign sources translated.

Each question is a run of its own, with its own history: it may take hours, and the editor waits without cost. Models are
scripted, so it runs without a key; put `openai:gpt-5-mini` in their place and it runs as well.

    uv run mulligan worker --load examples.research_team
    uv run mulligan start editor "What do herons eat?" --id herons --wait
    uv run mulligan show herons --deep
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script, last_result, tool

SHELVES = {"fish": "Herons eat fish.", "frogs": "De reiger eet ook kikkers.", "habits": "Herons stand still, and wait."}


@tool
async def look_up(word: str) -> str:
    """Look a word up in the library."""
    return SHELVES.get(word, "There is nothing on that.")


translator = Agent(name="translator", model="scripted:translator", instructions="You translate into English.")
researcher = Agent(
    name="researcher",
    model="scripted:researcher",
    instructions="You answer one question by what you find in the library.",
    tools=[look_up, translator.as_tool(description="Translates a sentence into English.")],
    max_steps=10,
)
editor = Agent(
    name="editor",
    model="scripted:editor",
    instructions="You split a question into parts, have each researched, and sum up what was found.",
    tools=[researcher.as_tool(description="Answers one question from the library.", share_budget=True, timeout=3600)],
    max_total_tokens=100_000,
)


def _sums_up(messages: Sequence[Message]) -> Say:
    return Say(" ".join(message.text for message in messages if message.role == "tool"))


def _translates_if_need_be(messages: Sequence[Message]) -> Say:
    found = last_result(messages)
    return Say(calls=[Call("translator", {"prompt": found})]) if "reiger" in found else Say(found)


editor_script = Script("editor", [Say(calls=[Call("researcher", {"prompt": each}) for each in SHELVES]), _sums_up])
researcher_script = Script(
    "researcher",
    [
        lambda messages: Say(calls=[Call("look_up", {"word": messages[0].text})]),
        _translates_if_need_be,
        lambda messages: Say(last_result(messages)),
    ],
)
translator_script = Script("translator", [Say("Herons eat frogs, too.")])
