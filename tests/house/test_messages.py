"""Messages that users meet: a refusal names the value that was given; the most common ones are short, and are found in the docs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.test_troubleshooting import GAP, ROOMS, ROOT, SECTIONS, fixed_parts, is_in_the_product, text_of
from tests.support.common_messages import BY_HEADING, BY_SEARCH, MESSAGES

ALL = [message for messages in MESSAGES.values() for message in messages]
FOR_MODELS = "activities/answers/", "mulligan/features/code_mode.py"
PATTERNS = "activities/models/_refusals.py", "activities/models/_http_errors.py"
WITHOUT_A_VALUE = {
    "its name must be 1 to 64": "the sentence before names the tool",
    "name must be 1 to": "the sentence before names the tool or server",
    'must be one JSON object with "input"': "names the file and its line",
    "is not a case: it must be": "names the file",
    "but it must be file:///folder": "what is wrong is a part of the setting that may have no secret",
    "it must be host:port": "stands behind the setting and its value",
    "it must begin with http:// or https://": "stands behind the setting and its value",
    "url must begin with http:// or https://": "may have a password in it",
    "base_url has a '?' or '#'": "may have a token in it",
    "api_key_env must be the name": "may be the key itself",
    "the value of the header": "may be secret",
    "the model must be a text such as": "the sentence before quotes it",
    '"model" must be a name': "may have a key in it",
    "a key must be a text": "names the line of the file",
    "must be a function at the top level": "names the function",
    "must take three arguments": "names the function",
    "the caller must be trusted": "says what is missing",
    "its function must be at the top level": "the sentence before names the tool",
    "the text of the content must be the text": "two fields of one message",
    "resources must be an async context manager": "names the file",
}
"""Refusals that name no value, and why."""
MUST = re.compile(r"\bmust (?:be|begin|have|contain|say|take|name|describe)\b")
NAMED = re.compile(
    r"\b(?:is|has|are|have|contains|returned|body|names|with|has the \"\w+\")"
    rf" (?:an? |the type |of the types? |of the type |more than )?{GAP}"
)
"""A value, its type or its size in a sentence."""


def refusals() -> Iterator[tuple[str, str]]:
    """The texts of the product that say what something must be, with their files; not docstrings, and not parts of a text."""
    for file in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        name = str(file.relative_to(ROOT))
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node) if part is not node
        }  # fmt: skip
        for node in ast.walk(tree):
            text = text_of(node)
            if MUST.search(text) and len(text) > 20 and id(node) not in docstrings | parts:
                yield name, text


def test_a_refusal_that_says_what_a_value_must_be_names_the_value() -> None:
    found = {(name, text) for name, text in refusals() if not name.startswith((*FOR_MODELS, *PATTERNS))}
    assert len(found) > 60
    unnamed = {text.replace(GAP, "…"): name for name, text in found if not NAMED.search(text)}
    assert {text: name for text, name in unnamed.items() if not any(known in text for known in WITHOUT_A_VALUE)} == {}
    assert [known for known in WITHOUT_A_VALUE if not any(known in text for text in unnamed)] == []


def test_there_are_a_hundred() -> None:
    assert (len(ALL), len({*ALL})) == (100, 100)


@pytest.mark.parametrize("message", ALL)
def test_a_common_message_is_a_text_of_the_product_and_short(message: str) -> None:
    assert is_in_the_product(message)
    assert message.count("\n") < 4
    assert len(message) <= 160


def test_most_common_messages_are_found_in_the_docs() -> None:
    """70 of 100: by a heading of the page on troubleshooting, or by the site's search (tests/system/test_docs_site.py)."""
    headings = [re.compile(".*?".join(map(re.escape, fixed_parts(heading)))) for heading, _ in SECTIONS]
    by_heading = {message for message in ALL if any(heading.search(message) for heading in headings)}
    assert len(by_heading) >= BY_HEADING
    assert {*BY_SEARCH} <= {*ALL} - by_heading
    assert len(by_heading) + len(BY_SEARCH) >= 70
