"""How endpoints say that a request is too long for the model: each in its own words, few with a code."""

from __future__ import annotations

import re

STATUSES = frozenset({400, 413, 422})
_OVERFLOW = re.compile(
    "|".join(
        (
            r"context_(length|window|size)_?exceed|ContextWindowExceeded",  # OpenAI and its followers; LiteLLM
            r"\bcontext (length|window|size)\b.{0,40}\b(exceed|overflow|limit)|\bcontext.{0,20}overflow",
            # MiniMax, LM Studio; OpenAI, vLLM, SGLang, Mistral, OpenRouter, llama.cpp
            r"\b(maximum|exceed\w*|larger|longer|beyond|greater|over)\b.{0,80}\bcontext (length|window|size)\b",
            r"\bprompt is too long|\binput is too long|too many (input |prompt )?tokens",  # Anthropic, Bedrock
            r"\bmaximum prompt length\b|\bprompt exceeds|exceeded model token limit",  # xAI, GLM, Kimi
            r"\binput token count\b.{0,40}\bexceed",  # Google
            r"\btokens` \+ `max_new_tokens`? must be|`inputs` tokens \+",  # Together, TGI
        )
    ),
    re.IGNORECASE,
)
_OTHER_LIMITS = re.compile(r"\bper (second|minute|hour|day)\b|\bTPM\b|rate.?limit", re.IGNORECASE)
"""Of a rate: Groq answers 413 to a request that has more tokens than a minute allows."""


def tells_overflow(status: int, message: str) -> bool:
    """Whether an endpoint has refused a request as too long for the model."""
    return status in STATUSES and bool(_OVERFLOW.search(message)) and not _OTHER_LIMITS.search(message)
