"""`record_sub_run`: the end of a sub-agent's run, and its result for the calling model.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from typing import Any

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.values import SubRun
from mulligan.wire.tool_call import CallRequest, ToolOutcome

RECORD_SUB_RUN = "record_sub_run"
"""Temporal's activity type."""


class RecordSubRun(CallRequest):
    """Input of `record_sub_run`: write the span of a sub-agent's call that has ended, and the feedback where it failed.

    `run` says how it ended; its `status` may also be `not_started`, `too_deep` or `too_many`. `text` is its result, or the
    last text of its model where it did not complete. `reason` and `failure` (a typed error as JSON) say why there is none.
    `limit`: its timeout in seconds; 0: none. `cancelled`: the calling run was cancelled, so no model gets the result.
    """

    started: float
    arguments: Any = None
    run: SubRun
    text: str = ""
    reason: str = ""
    failure: dict[str, Any] | None = None
    limit: float = 0
    cancelled: bool = False
    untrusted: bool = optional_field(False)
    """Whether others may have written the result."""
    checks_output: bool = optional_field(False)
    """As of SubAgentFacts."""
    quarantine: bool = optional_field(False)
    """As of SubAgentFacts: `text`, `reason` and `failure` may have been written by others, and no model may get them."""


class SubRunOutcome(ToolOutcome):
    """Result of `record_sub_run`. `text` is left out, and `is_text_unchanged` set, where it equals the text of the input."""

    is_text_unchanged: bool = optional_field(False)


WORDS = FeatureWords(activities=(RECORD_SUB_RUN,))
