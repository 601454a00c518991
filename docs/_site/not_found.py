"""`404.html`, beside the versions and in each: one file that works at any depth, as a server sends it for any address."""

from pathlib import Path

from sphinx.application import Sphinx

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>There is no such page - Mulligan</title>
<meta name="description" content="There is no page at this address of Mulligan's docs.">
<style>
:root { color-scheme: light dark; }
body { font: 1.1rem/1.6 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1rem; }
</style></head>
<body><main><h1>There is no such page</h1>
<p>It may have moved, or this version does not have it.</p>
<p><a id="home" href="/">The docs' first page</a> · <a id="search" href="/">Search</a></p></main>
<script>
// The folder of a version, wherever the site is: `latest`, or a number.
const [root] = location.pathname.match(/^.*?\\/(latest|\\d+(\\.\\w+)+)\\//) || ["/latest/"];
document.getElementById("home").href = `${root}index.html`;
document.getElementById("search").href = `${root}search.html`;
</script></body></html>
"""


def write(app: Sphinx, fault: Exception | None) -> None:
    """Write it into the folder that was built and, if that is a version's, into the folder above."""
    out = Path(app.outdir)
    if fault:
        return
    (out / "404.html").write_text(PAGE)
    if out.name == app.config.release:
        (out.parent / "404.html").write_text(PAGE)
