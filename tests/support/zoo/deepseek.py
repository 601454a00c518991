"""DeepSeek: the roles alternate, and reasoning comes back with the calls that it led to."""

from __future__ import annotations

from tests.support.zoo import rules, streams
from tests.support.zoo.member import Member

MEMBER = Member(
    name="deepseek",
    sources=[
        "https://github.com/deepseek-ai/DeepSeek-R1/issues/21 (successive messages)",
        "https://github.com/charmbracelet/crush/issues/2754 (reasoning that is missing)",
        "https://github.com/XiaomiMiMo/MiMo-Code/issues/1500 (an empty answer)",
    ],
    rules=[
        rules.roles_alternate(
            "deepseek-reasoner does not support successive user or assistant messages (messages[1] and messages[2] in your"
            " input). You should interleave the user/assistant messages in the message sequence."
        ),
        rules.comes_back(
            "reasoning_content",
            lambda text: text == "Let me see.",
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
        ),
        rules.nothing_empty(lambda at, _role: f"messages.{at}: all messages must have non-empty content"),
    ],
    answers=streams.with_field("reasoning_content", "Let me see."),
    streams=streams.extra_pieces("reasoning_content", lambda text: [text[:4], text[4:]]),
)
