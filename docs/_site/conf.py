"""The site of the docs, built by `make docs-site`: Sphinx, pages in Markdown (MyST), Furo's theme.

The pages are readable without the site, the reference too. The site adds the navigation, the search, an index of the names,
the switch between versions, and copies for programs: each page as Markdown, `llms.txt` and `llms-full.txt`.
"""

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import head_of_page  # noqa: E402 - this folder is no package
import markdown_copies  # noqa: E402
import not_found  # noqa: E402
import reference_pages  # noqa: E402
import search_words  # noqa: E402
import versions  # noqa: E402

log = logging.getLogger(__name__)
project = "Mulligan"
copyright = "the authors of Mulligan"  # noqa: A001 - Sphinx's name for it
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
root_doc = "index"
exclude_patterns = ["_site"]
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 4
nitpicky = True
# Types of Python and of other libraries have no pages here. A name of `mulligan` that does not exist fails the build.
nitpick_ignore_regex = [("py:.*", r"(?!mulligan\.).*")]
html_theme = "furo"
html_title = "Mulligan"
templates_path = ["templates"]
html_static_path = ["static"]
html_js_files = ["switch_version.js"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
html_search_scorer = str(Path(__file__).parent / "search_order.js")
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html",
        "sidebar/scroll-end.html", "sidebar/versions.html",
    ]
}  # fmt: skip
html_copy_source = False
html_show_sphinx = False
# Furo's fonts are the system's: the pages load nothing from another host.
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """The lists of links in the entry page are the site's navigation: a section is a group of it."""
    if page != app.config.root_doc:
        return
    for title, section in re.findall(r"^## (.+)\n((?:.+\n|\n(?!## ))*)", source[0], re.MULTILINE):
        pages = [
            link.removesuffix(".md") for link in re.findall(r"^- \[[^]]+\]\(([^):.#]+\.md)\)", section, re.MULTILINE)
        ]
        if pages:
            source[0] += "\n".join([f"\n:::{{toctree}}\n:hidden:\n:caption: {title}\n", *pages, ":::\n"])


def name_what_is_not_a_page(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a file outside of docs/ is its path: the repository has it, the site does not."""

    def replaced(link: re.Match[str]) -> str:
        target = (Path(app.srcdir) / page).parent / link[2].partition("#")[0]
        inside = target.resolve().is_relative_to(Path(app.srcdir)) and target.is_file()
        if inside or not target.exists():  # Sphinx reports a link to nothing
            return link[0]
        path = target.resolve().relative_to(ROOT)
        return f"{link[1]} (`{path}`)" if str(path) not in link[1] else link[1]

    source[0] = re.sub(r"\[([^]\n]+)\]\(([^):\s#][^):\s]*)\)", replaced, source[0])


def add_python_names(_: Sphinx, page: str, source: list[str]) -> None:
    """The headings of the reference become objects of Sphinx's Python domain: for the index, the search and other sites."""

    def with_objects(block: re.Match[str]) -> str:
        api = reference_pages.PUBLIC_API.match(block[1])
        return OBJECT.sub(lambda head: _object(api[1], head), block[0]) if api else block[0]

    if page.startswith("reference/"):
        source[0] = reference_pages.GENERATED.sub(with_objects, source[0])


OBJECT = re.compile(r"^(###|####) (\S+)\n\n```py\n(class|def|async def)?", re.MULTILINE)


def _object(module: str, head: re.Match[str]) -> str:
    level, name, keyword = head.groups()
    kind = {"class": "class", None: "data"}.get(keyword, "function" if level == "###" else "method")
    return f":::{{py:{kind}}} {module}.{name}\n:no-typesetting:\n:::\n\n{head[0]}"


def check_reference(_: Sphinx) -> None:
    """Faults of descriptions are warnings, and fail the build."""
    for problem in reference_pages.problems():
        log.warning(problem)


def setup(app: Sphinx) -> None:
    """Register what the pages need, in the order in which it changes their text."""
    app.connect("builder-inited", check_reference)
    app.connect("source-read", name_what_is_not_a_page)
    app.connect("source-read", markdown_copies.remember)
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_python_names)
    app.add_transform(search_words.AddWords)
    app.connect("html-page-context", head_of_page.add, priority=900)
    app.connect("build-finished", not_found.write)
    app.connect("build-finished", markdown_copies.write)
    app.connect("build-finished", versions.write)
