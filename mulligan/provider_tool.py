"""`ProviderTool`: a tool that the model's provider runs itself, such as a web search."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.errors import DeclarationError

MOST_BYTES = 50_000
"""Of a tool's definition as JSON: it is part of each request."""
_VERSION = re.compile(r"_(?:preview|\d{4}).*")


@dataclass(frozen=True)
class ProviderTool:
    """A tool that a provider runs itself: models of this provider may call it, models of others are not told of it.

    ```python
    Agent(name="reader", model="openai:gpt-5.5", tools=[ProviderTool("openai", {"type": "web_search"})])
    ```

    Args:
        provider: The provider: `openai`, `openai-chat`, `anthropic`, `google`, or one of your own.
        tool: The tool as the provider's API takes it, an object of JSON: `{"type": "web_search_20250305", "name":
            "web_search"}` of Anthropic, `{"google_search": {}}` of Google.

    Raises:
        DeclarationError: `provider` is no name of a provider, or `tool` cannot be sent.
    """

    provider: str
    tool: Mapping[str, Any]

    def __post_init__(self) -> None:
        context = f"ProviderTool({self.provider!r}, …)"
        if not isinstance(self.provider, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", self.provider):
            raise DeclarationError(f"{context}: give the name of a provider, such as 'openai', without a model.")
        if not isinstance(self.tool, Mapping) or not self.tool:
            raise DeclarationError(f"{context}: give the tool as the provider's API takes it, as a dict.")
        try:
            size = len(json.dumps(dict(self.tool), allow_nan=False, ensure_ascii=False).encode())
        except (ValueError, TypeError, RecursionError) as error:
            raise DeclarationError(f"{context}: the tool cannot be written as JSON ({error}).") from None
        if size > MOST_BYTES:
            raise DeclarationError(f"{context}: the tool has {size:,} bytes as JSON; the limit is {MOST_BYTES:,}.")
        if self.tool.get("type") in ("function", "custom"):
            raise DeclarationError(f"{context}: your own functions are tools of @tool; the provider cannot run them.")

    @property
    def name(self) -> str:
        """The name by which its calls are shown, and its price is found: `web_search`."""
        kind = self.tool.get("name") or self.tool.get("type") or next(iter(self.tool))
        return _VERSION.sub("", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(kind)).lower())
