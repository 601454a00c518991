"""One of two modules for workers that share a task queue and serve different agents. The other is west_agents.py."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, last_result, tool


@tool
def weigh(grams: int) -> str:
    """Weigh something."""
    return f"{grams} g"


@tool(local=True)
def round_up(grams: int) -> str:
    """Round up."""
    return f"{grams + 1} g"


@tool
def drop(grams: int) -> str:
    """Drop something."""
    raise ValueError(f"{grams} g broke")


@tool(needs_approval=True)
def ship(grams: int) -> str:
    """Ship something."""
    return f"{grams} g are shipped"


scale = Agent(name="east_scale", model="scripted:east_scale", tools=[weigh])
packer = Agent(
    name="east_packer",
    model="scripted:east_packer",
    tools=[weigh, round_up, drop, scale.as_tool(description="Weighs.")],
    handle_errors=lambda error: "in the words of the packer",
)
shipper = Agent(
    name="east_shipper",
    model="scripted:east_shipper",
    tools=[ship],
    handle_errors=lambda error: "in the shipper's words",
)
packer_script = Script(
    "east_packer",
    [
        Say(calls=[Call(name, {"grams": 7}) for name in ("weigh", "round_up", "drop")]),
        Say(calls=[Call("east_scale", {"prompt": "Weigh it."})]),
        lambda messages: Say(" / ".join(each.text for each in messages if each.role == "tool")),
    ],
)
scale_script = Script(
    "east_scale", [Say(calls=[Call("weigh", {"grams": 9})]), lambda messages: Say(last_result(messages))]
)
shipper_script = Script(
    "east_shipper", [Say(calls=[Call("ship", {"grams": 7}, id="s")]), lambda messages: Say(last_result(messages))]
)
