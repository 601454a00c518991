"""What a page's HTML says to browsers and search engines: its description, and the level of the navigation's headings."""

import re
from typing import Any

from markdown_copies import text_of  # a module of this folder
from sphinx.application import Sphinx

DESCRIPTION_CHARS = 160
"""What search engines show of it."""


def add(_: Sphinx, page: str, __: str, context: dict[str, Any], ___: object) -> None:
    """Add them to what the page's template gets."""
    if said := description(text_of(page)):
        context["metatags"] += f'<meta name="description" content="{said}">\n'
    # Furo's captions have the role of headings without a level, which accessibility wants.
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def description(text: str) -> str:
    """The beginning of a page's first paragraph, without markup."""
    _, _, rest = text.partition("\n\n")
    first = next((each for each in rest.split("\n\n") if re.match(r"[\w`*\[]", each)), "")
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)|[`*]", r"\1", first).replace("\n", " ")
    cut = plain if len(plain) <= DESCRIPTION_CHARS else plain[:DESCRIPTION_CHARS].rpartition(" ")[0] + " …"
    return cut.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
