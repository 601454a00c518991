"""The page that an MCP server asks a person to open is one of the web, as people's clients show it as a link."""

from __future__ import annotations

import pytest
from mcp.types import ElicitRequestURLParams

from mulligan.activities.mcp.elicitation import question_of
from mulligan.mcp import McpError


def asked(url: str) -> ElicitRequestURLParams:
    return ElicitRequestURLParams(message="Open it.", url=url, elicitation_id="e")


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "file:///etc/passwd"]
)
def test_a_question_whose_url_is_no_web_page_is_refused(url: str) -> None:
    with pytest.raises(McpError, match="not one of http or https"):
        question_of("", asked(url))


def test_a_question_with_a_web_page_is_asked() -> None:
    assert question_of("", asked("HTTPS://example.com/x")).url == "HTTPS://example.com/x"
