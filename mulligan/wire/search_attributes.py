"""The search attributes of runs, by which Temporal's UI and `mulligan list` find them, where the server has them.

They are never encrypted by Temporal, so nothing else of a run goes into one.
"""

from __future__ import annotations

from temporalio.common import SearchAttributeKey

AGENT_ATTRIBUTE = SearchAttributeKey.for_keyword("MulliganAgent")
"""The agent's name. Encrypted runs do not have it."""
STATUS_ATTRIBUTE = SearchAttributeKey.for_keyword("MulliganStatus")
"""A word of `run_status.py`, but for `terminated` and `timed_out`, which only Temporal knows."""
ORIGIN_ATTRIBUTE = SearchAttributeKey.for_keyword("MulliganForkedFrom")
"""`listed_origin` of the run that a run was forked from."""
SEARCH_ATTRIBUTES = (AGENT_ATTRIBUTE, STATUS_ATTRIBUTE, ORIGIN_ATTRIBUTE)
_ORIGIN_CHARS = 255


def listed_origin(workflow_id: str) -> str:
    """The beginning of a run's id, as databases hold no longer keywords. The memo of a fork has the whole id."""
    return workflow_id[:_ORIGIN_CHARS]
