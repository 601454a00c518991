"""`storyteller`: an agent to watch. Its scripted model writes as slowly as a real one, and needs no key.

uv run mulligan worker --load examples.storyteller
uv run mulligan start storyteller "Tell me a story." --id story
uv run mulligan tail story
"""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, tool

PACE = 0.05
"""Seconds that the model needs for a word."""


@tool
def look_outside(window: str) -> str:
    """Look out of a window.

    Args:
        window: Which one.
    """
    return f"Out of the {window} window there is rain."


NIGHT = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 3
story = Script(
    "story",
    [
        Say(
            "Stories begin with the weather. Let me look outside.", [Call("look_outside", {"pane": "north"})], pace=PACE
        ),
        Say("This house has no panes, but windows.", [Call("look_outside", {"window": "north"})], pace=PACE),
        Say(f"{NIGHT}That was all.", pace=PACE),
    ],
)

storyteller = Agent(
    name="storyteller",
    model="scripted:story",
    instructions="Tell a story that is about the weather of just now.",
    tools=[look_outside],
)
