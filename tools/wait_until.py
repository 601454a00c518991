"""`wait_until`: the agent waits for a point in time. Meanwhile the run takes nothing of a worker."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated

from pydantic import AwareDatetime, Field

from mulligan import ToolError, tool
from mulligan.tool import UntilTime

LONGEST = timedelta(days=366)


@tool(deferred=True)
def wait_until(when: AwareDatetime | None = None, seconds: Annotated[float, Field(ge=0)] | None = None) -> UntilTime:
    """Wait until a point in time, then go on. A message to you ends the wait early. Give either `when` or `seconds`.

    Args:
        when: The point in time, in ISO 8601 with its offset from UTC, such as 2027-03-01T09:00:00+01:00.
        seconds: How many seconds to wait.
    """
    if (when is None) == (seconds is None):
        raise ToolError("Give either `when` or `seconds`.")
    now = time.time()
    at = when.timestamp() if when is not None else now + (seconds or 0.0)
    if at - now > LONGEST.total_seconds():
        raise ToolError(f"A wait may take {LONGEST.days} days at most; wait for a part of it, then again.")
    return UntilTime(at)
