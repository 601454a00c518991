"""What happens in a run, as typed events, and `follow`, which yields them as they come (docs/events.md)."""

from mulligan.client.follow_events import follow
from mulligan.wire import event_types
from mulligan.wire.event_types import *  # noqa: F403 - users import each new type of event

__all__ = ["follow"]
__all__ += event_types.__all__
