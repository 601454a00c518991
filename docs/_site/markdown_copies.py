"""Files of the site for programs: each page as Markdown beside its HTML, `llms.txt` (llmstxt.org) and `llms-full.txt`."""

import re
from pathlib import Path

from sphinx.application import Sphinx

_texts: dict[str, str] = {}


def remember(_: Sphinx, page: str, source: list[str]) -> None:
    """Keep a page's text before the site adds anything to it."""
    _texts[page] = source[0]


def text_of(page: str) -> str:
    """A page's text as it stands in the repository; "" if it is no page."""
    return _texts.get(page, "")


def write(app: Sphinx, fault: Exception | None) -> None:
    """The entry page has the form of llms.txt: title, summary, lists of links. The full file has the pages in that order."""
    if fault:
        return
    out = Path(app.outdir)
    texts = {page: _texts.get(page) or app.env.doc2path(page).read_text() for page in app.env.found_docs}
    for page, text in texts.items():
        file = out / f"{page}.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    index = texts[app.config.root_doc]
    title, summary, rest = index.split("\n\n", 2)
    (out / "llms.txt").write_text("\n\n".join([title, "> " + summary.replace("\n", " "), rest]))
    listed = re.findall(r"^- \[[^]]+\]\(([^):.#]+)\.md\)", index, re.MULTILINE)
    full = [f"<!-- {page}.md -->\n\n{texts[page].strip()}\n" for page in listed]
    (out / "llms-full.txt").write_text("\n\n".join(full))
