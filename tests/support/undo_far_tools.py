"""The module of a worker on another task queue: a tool without its agent, with its own undo."""

from __future__ import annotations

from mulligan import ToolContext, tool
from tests.support.undo_agents import Booking, cancel_booking, write


@tool(undo=cancel_booking)
async def far_book(room: str, ctx: ToolContext) -> Booking:
    """Book a room, far away."""
    write(ctx, "far_book", room=room)
    return {"id": 9, "room": room}
