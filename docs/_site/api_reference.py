"""The directive `public-api MODULE`: the reference of the module's names that its content lists, from their docstrings."""

from docstrings import find_entry
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)


class ApiReference(SphinxDirective):
    """`:::{public-api} MODULE`, with a name of the module per line, or `Name: method, method` for a part of its methods."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Parse the names' descriptions as Markdown, as if they stood in the page."""
        module = self.arguments[0]
        rendered = [f":::{{py:currentmodule}} {module}\n:::"]
        self.env.note_reread()  # after a change of the source
        for line in filter(None, (line.strip() for line in self.content)):
            entry = find_entry(module, line)
            if entry is None:
                log.warning("%s has no %s", module, line, location=self.get_location())
                continue
            rendered += entry.rendered()
            for problem in entry.problems():
                log.warning("%s.%s: %s", module, entry.name, problem, location=self.get_location())
        return self.parse_text_to_nodes("\n\n".join(rendered), allow_section_headings=False)
