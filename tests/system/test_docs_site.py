"""The docs as a site: names, commands, copies for programs, versions; it loads nothing from another host, and faults fail the build."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer.main
from playwright.async_api import Browser

from mulligan.cli.app import app
from tests.support.common_messages import BY_SEARCH
from tests.support.npm_packages import installed, run_node

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
GROUPS = (
    *("Start", "Build agents", "Tools that act", "People", "Chat for customers", "Models", "Make it better", "Run it"),
    *("Secure it", "Look it up", "Why"),
)
QUERIES = {
    "getting started": "tutorial",
    "install": "tutorial",
    "glossary": "words",
    "stop button": "messages",
    "cancel a run": "messages",
    "abort": "messages",
    "human in the loop": "people",
    "approval": "people",
    "who may approve": "approval-rules",
    "fastapi": "not-built-in",
    "REST": "http-api",
    "login": "serving-sign-in",
    "oauth": "serving-sign-in",
    "GDPR": "not-built-in",
    "prompt injection": "hostile-content",
    "encrypt": "encryption",
    "multi tenant": "tenants",
    "memory": "not-built-in",
    "RAG": "not-built-in",
    "chat history": "resume",
    "vercel": "ai-sdk",
    "copilotkit": "ag-ui",
    "openai compatible": "serving-openai",
    "troubleshooting": "troubleshooting",
    "error message": "troubleshooting",
    "ollama": "local-models",
    "azure": "endpoints",
    "claude": "anthropic-google",
    "price": "costs",
    "spending limit": "budgets",
    "timeout of a tool": "options",
    "retry": "recovery",
    "idempotency key": "once",
    "rollback": "undo",
    "webhook": "deferred-tools",
    "mcp server": "mcp",
    "cron": "schedules",
    "unit test": "testing",
    "eval": "scores",
    "kubernetes": "deploying",
    "jaeger": "traces",
    "environment variables": "settings",
    "pdf": "content",
    "json output": "structured-output",
}
"""What people type, and the page that answers it."""
AS_SEARCHED = "query => Search._performSearch(...Search._parseQuery(query)).reverse().map(each => each[0])"
"""What Sphinx's search lists, the first one first, without drawing it."""
LIGHTHOUSE = {"lighthouse": "12.8.2"}
SCORED = "index", "tutorial", "people", "reference/commands", "code-mode"
"""The entry, the tutorial, a how-to, the commands, the longest how-to."""
PUBLIC = ("mulligan", "mulligan.tools", "mulligan.testing", "mulligan.events", "mulligan.providers")
SOURCES = ("docs", "mulligan", "workflows", "activities", "tools", "deploy", "benchmarks", "examples")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def build(root: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """As `make docs-site` builds it: `out` is its folder, with the version's name. `more`: options."""
    [options] = re.findall(r"sphinx-build (.*) docs site/\$\(VERSION\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options.split(), *more, "docs", str(out)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / VERSION
    older = out.parent / "0.0.9"  # built earlier into the same folder
    older.mkdir()
    (older / "objects.inv").write_bytes(b"")
    built = build(ROOT, out)
    assert (built.returncode, built.stderr) == (0, "")
    return out


def test_each_public_name_is_in_the_reference(site: Path) -> None:
    """`__all__` of what users import, against the names that the site's inventory lists."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert public - {"mulligan.events", "mulligan.serve"} - listed == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_in_the_reference_with_its_options(site: Path, name: str) -> None:
    page = (site / "reference/commands.html").read_text()
    section = page.split(f"<h2>mulligan {name}<")[1].split("<h2>")[0]
    text = re.sub(r"<[^>]+>", "", section)
    for parameter in COMMANDS[name].params:
        for spelled in parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]:
            assert spelled in text


def test_the_navigation_shows_the_groups_with_each_page_once(site: Path) -> None:
    page = (site / "people.html").read_text()
    captions = re.findall(r'<span class="caption-text">([^<]+)<', page)
    assert captions == [*GROUPS]
    navigation = page.split('class="sidebar-tree"')[1].split('class="sidebar-tree versions"')[0]
    assert len(re.findall(r'href="structured-output\.html"', navigation)) == 1


def test_each_page_is_markdown_at_its_address_too(site: Path) -> None:
    """`page.md` beside `page.html`, which names it; the text is the repository's, without links to files that are not pages."""
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    for page in pages:
        html = (site / page.with_suffix(".html")).read_text()
        assert f'<link rel="alternate" type="text/markdown" href="{page.name}.md">' in html
        assert (site / page.with_suffix(".md")).read_text().startswith("# ")
    assert (site / "structured-output.md").read_text() == (ROOT / "docs/structured-output.md").read_text()
    assert "class RunInput(BaseModel)" in (site / "reference/python.md").read_text()


def test_llms_txt_lists_each_page_and_llms_full_txt_has_them(site: Path) -> None:
    """As llmstxt.org describes it: a title, a summary as a quotation, lists of links with notes, and nothing else."""
    title, summary, *rest = (line for line in (site / "llms.txt").read_text().splitlines() if line)
    assert (title, summary[:2]) == ("# Mulligan", "> ")
    links = [re.fullmatch(r"- \[[^]]+\]\(([^)]+)\)(: .+)?", line) for line in rest if not line.startswith("## ")]
    listed = {link[1] for link in links if link}
    assert len(listed) == len(links)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert listed == {page for page in pages if "decisions/" not in page} | {"decisions/index.md"}
    full = (site / "llms-full.txt").read_text()
    assert [f"{page}.md" for page in re.findall(r"^<!-- (\S+)\.md -->$", full, re.MULTILINE)] == [
        link[1] for link in links if link
    ]
    assert (site / "people.md").read_text().strip() in full


async def test_versions_are_folders_and_each_page_leads_to_the_others(site: Path, chromium: Browser) -> None:
    """In a browser, from the files: the list has the versions, and choosing one opens it. `latest` is the newest."""
    assert (site.parent / "latest/people.md").read_text() == (site / "people.md").read_text()
    assert "url=latest/index.html" in (site.parent / "index.html").read_text()
    other = site.parent / "0.0.9/reference/python.html"
    other.parent.mkdir(exist_ok=True)
    other.write_text("<title>earlier</title>")
    page = await chromium.new_page()
    await page.goto((site.parent / "latest/reference/python.html").as_uri())
    versions = page.get_by_label("Version")
    assert await versions.locator("option").all_text_contents() == [VERSION, "0.0.9"]
    await versions.select_option("0.0.9")
    await page.wait_for_url("**/0.0.9/reference/python.html")
    await page.close()


async def test_the_search_finds_a_class_of_the_reference(site: Path, chromium: Browser) -> None:
    page = await chromium.new_page()
    await page.goto((site / "search.html").as_uri() + "?q=ToolContext")
    found = await page.locator("#search-results a", has_text="ToolContext").first.get_attribute("href")
    assert found is not None
    assert found.startswith("reference/python.html")
    await page.close()


async def test_the_search_finds_the_page_for_each_job(site: Path, chromium: Browser) -> None:
    """Among the first three pages that it lists; no decision is listed before another page."""
    page = await chromium.new_page()
    await page.goto((site / "search.html").as_uri())
    await page.wait_for_function("typeof Search !== 'undefined' && Search.hasIndex()")
    missed = {}
    for query, wanted in QUERIES.items():
        found = await page.evaluate(AS_SEARCHED, query)
        pages = [*dict.fromkeys(found)]
        if wanted not in pages[:3]:
            missed[query] = pages[:5]
        kinds = [each.startswith("decisions/") for each in pages]
        assert kinds == sorted(kinds), query
    assert len(QUERIES) >= 40
    assert len(missed) <= len(QUERIES) // 10, missed
    await page.close()


async def test_the_search_finds_the_page_for_a_common_message(site: Path, chromium: Browser) -> None:
    """Of those without a heading in docs/troubleshooting.md: by what a user types who has read it."""
    page = await chromium.new_page()
    await page.goto((site / "search.html").as_uri())
    await page.wait_for_function("typeof Search !== 'undefined' && Search.hasIndex()")
    missed = {}
    for query, wanted in BY_SEARCH.values():
        pages = [*dict.fromkeys(await page.evaluate(AS_SEARCHED, query))]
        if wanted not in pages[:3]:
            missed[query] = pages[:5]
    assert missed == {}
    await page.close()


async def test_lighthouse_has_no_complaint_about_the_pages(site: Path, chromium_program: str) -> None:
    """95 or more. `make lighthouse` measures performance too, which depends on what else the machine does."""
    categories = os.environ.get("LIGHTHOUSE", "accessibility,best-practices,seo")
    folder = await installed("lighthouse", LIGHTHOUSE)
    with served(site.parent) as address:
        urls = [f"{address}/{VERSION}/{page}.html" for page in SCORED]
        scores = json.loads(
            await run_node(folder, ROOT / "tests/support/lighthouse.mjs", chromium_program, categories, *urls)
        )
    print(*scores.items(), sep="\n")
    assert [*scores] == urls
    assert {url: each for url, each in scores.items() if min(each.values()) < 95} == {}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder's files are served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_address_without_a_page_leads_to_the_docs_wherever_it_is(site: Path) -> None:
    """One file, which loads nothing and has no relative address; a server sends it for any path."""
    text = (site / "404.html").read_text()
    assert (site.parent / "404.html").read_text() == text
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["/", "/"]


async def test_the_page_for_a_missing_address_names_the_version_of_that_address(site: Path, chromium: Browser) -> None:
    page = await chromium.new_page()
    text = (site / "404.html").read_text()
    await page.route("**/*", lambda route: route.fulfill(status=404, content_type="text/html", body=text))
    for path, root in {
        "/gone": "/latest/",
        f"/docs/{VERSION}/a/b/gone": f"/docs/{VERSION}/",
        "/x/latest/gone.html": "/x/latest/",
    }.items():
        await page.goto(f"http://docs.invalid{path}")
        assert await page.get_by_role("link", name="first page").get_attribute("href") == f"{root}index.html"
    await page.close()


def test_an_opened_page_makes_no_request_to_another_host(site: Path) -> None:
    """Links of the text lead anywhere; scripts, styles, fonts and images are the site's own."""
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert loaded or page.name == "404.html"
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)]
    for file in [*site.rglob("*.css")]:
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", file.read_text())


def test_faults_fail_the_build(tmp_path: Path) -> None:
    """A copy of the project with one fault of each kind. No page is written, which is half of the time: all are read, and their
    references resolved. The decisions, half of the pages, are left out.
    """
    for folder in SOURCES:
        shutil.copytree(
            ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("results", "__pycache__")
        )
    for decision in (tmp_path / "docs/decisions").glob("2*.md"):
        decision.unlink()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    faults = {
        "docs/people.md": [("# ", "# [x](gone.md) [y](events.md#gone) {py:class}`mulligan.Gone`\n\n# ")],
        "docs/reference/python.md": [("\ntool\n", "\ntool\nGone\n"), ("\nHandleErrors\n", "\n")],
        "docs/index.md": [("- [Typed answers](structured-output.md)\n", "")],
        "mulligan/errors.py": [('    """The tool, or its worker, did not answer in time."""\n', "    pass\n")],
        "mulligan/values.py": [('    """Tokens of the model call."""\n', "")],
        "mulligan/output.py": [("    Args:\n        result:", "    Args:\n        gone:")],
        "mulligan/cli/show.py": [('typer.Argument(help="The run\'s id.")', "typer.Argument()")],
    }
    for name, edits in faults.items():
        text = (tmp_path / name).read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / name).write_text(text)
    older = tmp_path / "site/0.0.9"
    older.mkdir(parents=True)
    (older / "objects.inv").write_bytes(b"")
    built = build(tmp_path, tmp_path / "site" / VERSION, "-b", "dummy")
    assert built.returncode == 1
    for warning in (
        "people.md:1: WARNING: 'myst' cross-reference target not found: 'gone.md'",
        "local id not found in doc 'events': 'gone'",
        "py:class reference target not found: mulligan.Gone",
        "mulligan has no Gone",
        "mulligan.ToolTimeoutError: no docstring",
        "mulligan.Step: the field `usage` is not described",
        "mulligan.output_of: the parameter `result` is not described",
        "mulligan.output_of: describes a parameter `gone`, which it does not have",
        "docs/reference/python.md is not current: run `make docs`",
        "names the type mulligan.policy.HandleErrors, which is not in the reference",
        "structured-output.md: WARNING: document isn't included in any toctree",
        "mulligan show: ID has no help text",
    ):
        assert warning in built.stderr


def test_the_reference_separates_what_mulligan_sets_from_what_its_users_set() -> None:
    """By the docstring of the field: it begins with "Set by" or "Set for"."""
    page = (ROOT / "docs/reference/python.md").read_text()
    section = page[page.index("\n### RunInput\n") : page.index("\n### RunResult\n")]
    assert "Mulligan sets these" not in section
    for field in ("agent", "prompt", "max_cost", "user"):
        assert f"- `{field}:" in section
    of_tool = page[page.index("\n### Tool\n") :]
    theirs, ours = of_tool.split("\nMulligan sets these, not you:\n")[:2]
    assert ("- `timeout:" in theirs, "- `mcp_server:" in theirs, "- `mcp_server:" in ours) == (True, False, True)
