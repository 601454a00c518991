"""The site of the docs, built by `make docs-site`: Sphinx, pages in Markdown (MyST), Furo's theme.

The pages are readable without the site. What only the site has is generated when it is built: the reference of the Python
API from the docstrings, and of the commands from their options.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from api_reference import ApiReference  # noqa: E402 - this folder is no package
from command_reference import CommandReference  # noqa: E402

project = "Mulligan"
copyright = "the authors of Mulligan"  # noqa: A001 - Sphinx's name for it
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


def setup(app: Sphinx) -> None:
    """Register what the pages use."""
    app.add_directive("public-api", ApiReference)
    app.add_directive("commands", CommandReference)
    app.connect("source-read", add_navigation)
    app.connect("source-read", name_what_is_not_a_page)
