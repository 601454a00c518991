"""The tokens of an answer of OpenAI's two APIs, and the service tier at whose prices it was given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mulligan.activities.models._json_fields import token_count
from mulligan.values import Usage

STANDARD = ("auto", "default", "on_demand", "standard")
"""The names of standard tiers: of OpenAI, and of servers that are compatible with it."""
OTHER_NAMES = {"fast": "priority"}
"""Tiers with two names."""


def openai_usage(answer: Mapping[str, Any]) -> Usage:
    """The tokens that an endpoint has counted for a response or a completion; 0 where it has not."""
    usage = answer.get("usage")
    is_response = isinstance(usage, dict) and "input_tokens" in usage
    sent, written = ("input_tokens", "output_tokens") if is_response else ("prompt_tokens", "completion_tokens")
    return Usage(
        input_tokens=token_count(usage, sent),
        output_tokens=token_count(usage, written),
        cached_input_tokens=token_count(usage, f"{sent}_details", "cached_tokens"),
        reasoning_tokens=token_count(usage, f"{written}_details", "reasoning_tokens"),
        cache_write_tokens=token_count(usage, f"{sent}_details", "cache_write_tokens"),
        tier=openai_tier(answer.get("service_tier")),
    )


def openai_tier(tier: object) -> str:
    """The tier that a `service_tier` names: an answer's may differ from its request's. "": the standard one."""
    if not isinstance(tier, str) or tier in STANDARD or not re.fullmatch(r"[a-z0-9_-]{1,40}", tier):
        return ""
    return OTHER_NAMES.get(tier, tier)
