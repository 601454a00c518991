"""The pages in docs/reference/, which are generated from docstrings and from the options of commands.

A page has comments: `public-api MODULE` with the names to describe, or `commands`. What stands between a comment and
`<!-- end of the generated text -->` is written by `make docs` (this module as a program).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import command_descriptions  # noqa: E402 - this folder is no package
from docstrings import PUBLIC_API, Entry, find_entry, reference_lines  # noqa: E402

PAGES = sorted((ROOT / "docs/reference").glob("*.md"))
GENERATED = re.compile(
    r"(^<!-- (?:public-api .*?^|commands )-->\n).*?(?=^<!-- end of the generated text -->)", re.MULTILINE | re.DOTALL
)


def current_text(page: Path) -> str:
    """The page with the generated text that the sources have now."""
    return GENERATED.sub(lambda part: f"{part[1]}\n{_described(page, part[1])}\n\n", page.read_text())


def problems() -> Iterator[str]:
    """Faults: descriptions that are missing or wrong, and pages that `make docs` would change."""
    for module, line in reference_lines():
        entry = find_entry(module, line)
        if entry is None:
            yield f"{module} has no {line}"
        else:
            yield from (f"{module}.{entry.name}: {problem}" for problem in entry.problems())
    yield from command_descriptions.problems()
    for page in PAGES:
        if current_text(page) != page.read_text():
            yield f"{page.relative_to(ROOT)} is not current: run `make docs`"


def _described(page: Path, comment: str) -> str:
    public_api = PUBLIC_API.match(comment)
    if public_api is None:
        return command_descriptions.as_markdown()
    module, lines = public_api.groups()
    entries = (find_entry(module, line) for line in lines.splitlines())
    return "\n\n".join(_section(page, entry) for entry in entries if entry)


def _section(page: Path, entry: Entry) -> str:
    """The description, and links to those of the types in it."""
    anchors = {name: f"{other.name}#{slug}" for other in PAGES for name, slug in _anchors(other).items()}
    anchors |= {name: f"#{slug}" for name, slug in _anchors(page).items()}
    links = [f"[{name}]({anchors[name]})" for name in sorted(entry.types() & anchors.keys())]
    return "\n\n".join([entry.rendered(), *(["Types: " + ", ".join(links)] if links else [])])


def _anchors(page: Path) -> dict[str, str]:
    """The names that a page lists, with the anchors of their headings: a repeated one gets a number."""
    anchors: dict[str, str] = {}
    for _, lines in PUBLIC_API.findall(page.read_text()):
        for name in (line.partition(":")[0] for line in lines.splitlines()):
            before = sum(other.lower() == name.lower() for other in anchors)
            anchors[name] = name.lower() + (f"-{before}" if before else "")
    return anchors


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(current_text(each))
