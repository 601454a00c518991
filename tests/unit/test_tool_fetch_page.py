import asyncio
import gzip
import ipaddress
import socket
import sys
import zlib
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from mulligan import ToolError
from mulligan.tools import fetch_page
from mulligan.tools.web_address import MAX_URL, is_public

fetch_module = sys.modules["mulligan.tools.fetch_page"]  # `tools.fetch_page` is the tool

PAGE = """<!doctype html><html><head><title> A  page </title><style>p{}</style><script>bad()</script></head>
<body><nav><a href="/home">Home</a></nav><h1>Head</h1><p>One <b>two</b>.</p><div hidden>unseen</div>


<p><a href="next?a=1">Next</a> <img src="data:x" alt="a bird"></p><ul><li>x<li>y</ul></body></html>"""


class Site:
    """A server on the loopback with pages set by the test, which records its requests."""

    def __init__(self):
        self.pages: dict[str, Any] = {}
        self.asked: list[web.Request] = []
        self.port = 0

    def page(self, path, body=b"", status=200, **headers):
        body = body.encode() if isinstance(body, str) else body
        self.pages[path] = (body, status, {name.replace("_", "-"): value for name, value in headers.items()})

    async def handle(self, request):
        self.asked.append(request)
        found = self.pages.get(request.path, (b"not here", 404, {"Content-Type": "text/plain"}))
        if callable(found):
            return await found(request)
        body, status, headers = found
        return web.Response(body=body, status=status, headers=headers)

    def url(self, path="/", host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def site(monkeypatch):
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.port = runner.addresses[0][1]
    monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", f"127.0.0.1:{site.port}")
    yield site
    await runner.cleanup()


@pytest.fixture
def names(monkeypatch):
    """A fake resolver: for each name a list of addresses for each lookup."""
    table: dict[str, Any] = {}
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host, port, *args, **kwargs):
        host = host.decode() if isinstance(host, bytes) else host
        if host not in table:
            if isinstance(host, str) and host.strip(".").endswith(("test", "invalid", "localhost")):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return real(host, port, *args, **kwargs)
        asked.append(host)
        found = table[host].pop(0) if len(table[host]) > 1 else table[host][0]
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port or 0))
            for each in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    table["asked"] = asked
    return table


async def error_text(url, **options):
    with pytest.raises(ToolError) as error:
        await fetch_page(url, **options)
    assert error.value.__cause__ is None or not isinstance(error.value.__cause__, AssertionError)
    return str(error.value)


async def test_an_html_page_is_returned_as_markdown(site):
    site.page("/dir/page", PAGE, Content_Type="text/html; charset=utf-8")
    text = await fetch_page(site.url("/dir/page#part"))
    body = f"# Head\n\nOne **two**.\n\n[Next]({site.url('/dir/next?a=1')}) a bird\n\n- x\n- y"
    assert text == f"[{site.url('/dir/page')}: characters 0 to {len(body)} of {len(body)}]\nTitle: A page\n\n{body}"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "http://127.8.8.8/",
        "http://127。0。0。1/",
        "http://0.0.0.0/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://168.63.129.16/",
        "http://100.100.100.200/",
        "http://192.0.0.192/",
        "http://192.0.2.1/",
        "http://192.88.99.1/",
        "http://198.18.0.1/",
        "http://224.0.0.1/",
        "http://240.0.0.1/",
        "http://255.255.255.255/",
        "http://[::]/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::127.0.0.1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::ffff:0:127.0.0.1]/",
        "http://[64:ff9b::127.0.0.1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::8.8.8.8]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:7f00:1::]/",
        "http://[2001:db8::1]/",
        "http://[3fff::1]/",
        "http://[fc00::1]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://[fec0::1]/",
        "http://[ff02::1]/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://inside.test/",
        "http://mixed.test/",
        "http://zone.test/",
        "http://mapped.test/",
    ],
)
async def test_only_public_addresses_are_fetched(names, monkeypatch, url):
    monkeypatch.delenv("MULLIGAN_FETCH_ALLOW", raising=False)
    names["localhost"] = [["127.0.0.1"]]
    names["inside.test"] = [["10.1.2.3"]]
    names["mixed.test"] = [["93.184.216.34", "10.1.2.3"]]
    names["zone.test"] = [["fe80::1%1"]]
    names["mapped.test"] = [["::ffff:10.1.2.3"]]
    connected = []
    monkeypatch.setattr(fetch_module, "_get", lambda *args: connected.append(args))
    assert "is not on the public internet" in await error_text(url)
    assert connected == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://2130706433/", "not a name. Write an IPv4 address as four decimal numbers"),
        ("http://017700000001/", "four decimal numbers"),
        ("http://0x7f000001/", "four decimal numbers"),
        ("http://0x7f.1/", "four decimal numbers"),
        ("http://127.1/", "four decimal numbers"),
        ("http://127.0.1/", "four decimal numbers"),
        ("http://0/", "four decimal numbers"),
        ("http://0./", "four decimal numbers"),
        ("http://1.2.3.4.5/", "four decimal numbers"),
        ("http://0X7F.0.0.0x1/", "four decimal numbers"),
        ("http://0177.0.0.1/", "not a URL"),
        ("http://256.0.0.1/", "not a URL"),
        ("http://１２７.0.0.1/", "not a URL"),
        ("http://①②⑦.⓪.⓪.①/", "not a URL"),
        ("http://127.0.0.%31/", "no valid host"),
        ("http://%6c%6fcalhost/", "no valid host"),
        ("http://[fe80::1%25eth0]/", "no valid host"),
        ("http://[fe80::1%eth0]/", "no valid host"),
        ("http://[2606:4700::1111%1]/", "no valid host"),
        ("http://[::1/", "not a URL"),
        ("http://[v1.a]/", "not a URL"),
        ("http://a..b/", "no valid host"),
        ("http://exa mple.com/", "no valid host"),
        ("http:///etc/passwd", "no valid host"),
        ("http:127.0.0.1", "no valid host"),
        ("http://", "no valid host"),
        ("http://a:b:c/", "not a URL"),
        ("http://a:99999/", "no valid port"),
        ("http://a:0/", "no valid port"),
        ("http://good.test\\@127.0.0.1/", "backslash"),
        ("http://a\t.test/", "control characters"),
        ("http://a.test/\r\nX: y", "control characters"),
        ("http://a.test/\ud800", "control characters"),
        ("//127.0.0.1/", "Only http and https"),
        ("127.0.0.1", "Only http and https"),
        ("", "Only http and https"),
        ("file:///etc/passwd", "Only http and https can be fetched, and the address has 'file'"),
        ("ftp://a.test/", "Only http and https"),
        ("gopher://127.0.0.1:6379/_x", "Only http and https"),
        ("data:text/html,x", "Only http and https"),
        ("javascript:alert(1)", "Only http and https"),
        ("http://a.test/" + "x" * MAX_URL, "is longer than"),
    ],
    ids=lambda text: ascii(text[:40]),
)
async def test_odd_spellings_of_urls_are_refused(names, monkeypatch, url, said):
    monkeypatch.delenv("MULLIGAN_FETCH_ALLOW", raising=False)
    monkeypatch.setattr(fetch_module, "_get", None)
    names["a"] = names["a.test"] = [["93.184.216.34"]]
    text = await error_text(url)
    assert said in text
    assert len(text) < 500


@pytest.mark.parametrize("url", ["http://ada:hunter2@a.test/", "https://hunter2@a.test/", "http://@a.test/hunter2"])
async def test_credentials_are_refused_and_not_quoted(url):
    text = await error_text(url)
    assert "user name or password" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_these_addresses_are_public(address):
    assert is_public(ipaddress.ip_address(address))


def test_an_address_with_a_scope_is_not_public():
    assert not is_public(ipaddress.ip_address("2606:4700:4700::1111%1"))


@pytest.mark.parametrize(
    ("allow", "host", "is_let"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.0/8", "127.0.0.1", True),
        ("10.0.0.0/8, 127.0.0.1:{port}", "127.0.0.1", True),
        ("127.0.0.1:1", "127.0.0.1", False),
        ("10.0.0.0/8", "127.0.0.1", False),
        ("::1", "127.0.0.1", False),
        ("site.test", "site.test", True),
        ("SITE.test.", "site.test", True),
        ("site.test:{port}", "site.test", True),
        ("site.test:1", "site.test", False),
        ("127.0.0.0/8", "site.test", True),
        ("127.0.0.0/8", "[::ffff:127.0.0.1]", True),
        ("test", "site.test", False),
        ("site.test", "127.0.0.1", False),
        ("other.test", "site.test", False),
        ("", "127.0.0.1", False),
    ],
)
async def test_the_operator_can_allow_private_addresses(site, names, monkeypatch, allow, host, is_let):
    names["site.test"] = [["127.0.0.1"]]
    site.page("/", "hello", Content_Type="text/plain")
    monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", allow.format(port=site.port))
    if is_let:
        assert (await fetch_page(site.url(host=host))).endswith("\nhello")
        assert site.asked[0].headers["Host"] == f"{host}:{site.port}"
    else:
        assert "is not on the public internet" in await error_text(site.url(host=host))
        assert not site.asked


async def test_an_invalid_allow_setting_is_reported(site, monkeypatch):
    monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", "10.0.0.0/99")
    assert "MULLIGAN_FETCH_ALLOW has an entry" in await error_text(site.url())


async def test_a_name_is_resolved_once_and_the_checked_address_is_used(site, names, monkeypatch):
    names["rebind.test"] = [["127.0.0.1"], ["10.1.2.3"]]
    site.page("/", "checked", Content_Type="text/plain")
    monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", "127.0.0.0/8")
    assert (await fetch_page(site.url(host="rebind.test"))).endswith("\nchecked")
    assert names["asked"] == ["rebind.test"]
    assert "not on the public internet" in await error_text(site.url(host="rebind.test"))


async def test_another_address_is_tried_if_the_first_takes_no_connection(site, names, monkeypatch):
    names["two.test"] = [["127.0.0.2", "127.0.0.1"]]  # the server listens on the second address only
    site.page("/", "hello", Content_Type="text/plain")
    monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", "127.0.0.0/8")
    assert (await fetch_page(site.url(host="two.test"))).endswith("\nhello")


async def test_a_proxy_of_the_environment_is_not_used(site, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.page("/", "direct", Content_Type="text/plain")
    assert (await fetch_page(site.url())).endswith("\ndirect")


async def test_redirects_are_followed(site):
    site.page("/a", status=302, Location="/b", Set_Cookie="secret=1; Path=/")
    site.page("/b", status=308, Location="c d")
    site.page("/c d", "there", Content_Type="text/plain")
    assert (await fetch_page(site.url("/a"))).startswith(f"[{site.url('/c%20d')}: characters 0 to 5 of 5]")
    assert not any(name in asked.headers for asked in site.asked for name in ("Cookie", "Authorization", "Referer"))


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://169.254.169.254/", "not on the public internet"),
        ("//10.0.0.1/", "not on the public internet"),
        ("http://127.0.0.1:1/", "not on the public internet"),
        ("http://inside.test/", "not on the public internet"),
        ("http://0x7f.1/", "four decimal numbers"),
        ("http://ada:hunter2@127.0.0.1/", "user name or password"),
        ("file:///etc/passwd", "Only http and https"),
        ("http://[::1", "not a URL"),
    ],
)
async def test_the_target_of_a_redirect_is_checked(site, names, location, said):
    names["inside.test"] = [["10.1.2.3"]]
    site.page("/", status=302, Location=location)
    text = await error_text(site.url())
    assert text.startswith("'127.0.0.1' redirects elsewhere.")
    assert said in text
    assert "hunter2" not in text
    assert len(site.asked) == 1


async def test_more_than_five_redirects_are_refused(site):
    site.page("/", status=302, Location="/")
    assert "more than 5 times" in await error_text(site.url())
    assert len(site.asked) == 6


BOMBS = {
    "gzip": lambda: gzip.compress(b"x" * 100_000_000, 1),
    "deflate": lambda: zlib.compress(b"x" * 100_000_000, 1),
    "identity": lambda: b"x" * 3_000_000,
}


@pytest.mark.parametrize("coding", BOMBS)
async def test_a_body_is_read_up_to_a_limit(site, coding):
    site.page("/", BOMBS[coding](), Content_Type="text/plain", Content_Encoding=coding)
    text = await fetch_page(site.url())
    assert "characters 0 to 20,000 of 2,000,000]" in text
    assert text.endswith("[only the first 2,000,000 bytes of the page were read]")


async def test_an_endless_body_is_not_read_to_its_end(site):
    async def endless(request):
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    site.pages["/"] = endless
    assert "of 2,000,000]" in await fetch_page(site.url())


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "rot13"])
async def test_an_unrequested_content_encoding_is_refused(site, coding):
    site.page("/", b"x", Content_Type="text/plain", Content_Encoding=coding)
    assert f"as '{coding}', which was not asked for" in await error_text(site.url())
    assert site.asked[0].headers["Accept-Encoding"] == "gzip, deflate"


async def test_a_damaged_body_is_reported(site):
    site.page("/", b"no gzip", Content_Type="text/plain", Content_Encoding="gzip")
    assert "did not answer as it should" in await error_text(site.url())


async def test_a_response_that_is_too_slow_is_given_up(site, monkeypatch):
    ended = asyncio.Event()

    async def drip(request):
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.02)
        finally:
            ended.set()

    site.pages["/"] = drip
    monkeypatch.setattr(fetch_module, "FETCH_WITHIN", 0.3)
    assert "not there within 0.3 seconds" in await error_text(site.url())
    await ended.wait()  # the connection is closed


async def test_a_host_that_refuses_the_connection_is_reported(site, monkeypatch):
    monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", "127.0.0.1")
    assert "'127.0.0.1' could not be connected to" in await error_text("http://127.0.0.1:1/")


async def test_an_unknown_host_is_reported(names, monkeypatch):
    assert "There is no host 'nowhere.invalid'" in await error_text("http://nowhere.invalid/")


async def test_a_response_that_is_not_http_is_reported(monkeypatch):
    async def talk(reader, writer):
        writer.write(b"220 smtp ready\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("MULLIGAN_FETCH_ALLOW", f"127.0.0.1:{port}")
        assert "did not answer as it should" in await error_text(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/octet-stream", "video/mp4"])
async def test_a_content_type_other_than_text_is_named(site, kind):
    site.page("/", b"\x89PNG", Content_Type=kind)
    assert f"serves '{kind}' there, and only text can be fetched" in await error_text(site.url())


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/csv", "application/json", "application/ld+json", "application/atom+xml"]
)
async def test_plain_text_is_returned_unchanged(site, kind):
    site.page("/", '<p>{"a":  1}\n\n\n</p>', Content_Type=kind)
    assert (await fetch_page(site.url())).endswith('\n<p>{"a":  1}\n\n\n</p>')


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("<p>ä</p>".encode(), "text/html", "ä"),
        ("<p>ä€</p>".encode("cp1252"), "text/html; charset=ISO-8859-1", "ä€"),
        ("<meta charset='koi8-r'><p>да</p>".encode("koi8-r"), "text/html", "да"),
        (
            "<meta http-equiv=x content='text/html; charset=shift_jis'><p>日本</p>".encode("shift_jis"),
            "text/html",
            "日本",
        ),
        ("<meta charset=koi8-r><p>ä</p>".encode(), "text/html; charset=utf-8", "ä"),
        ("<p>ä</p>".encode("utf-16"), "text/html", "ä"),
        (b"\xef\xbb\xbfa", "text/plain; charset=ascii", "a"),
        ("<?xml version='1.0' encoding='iso-8859-2'?><a>ł</a>".encode("iso-8859-2"), "application/xml", "<a>ł</a>"),
        (b"a\xffb", "text/plain", "a\ufffdb"),
        (b"a\xffb", "text/plain; charset=punycode", "a\ufffdb"),
        (b"a\xffb", "text/plain; charset=no-such", "a\ufffdb"),
        (b"a\xffb", "text/plain; charset=hex", "a\ufffdb"),
        (b"a\0b", "text/plain", "a\ufffdb"),
    ],
)
async def test_the_charset_is_read_from_the_header_or_the_page(site, body, kind, expected):
    site.page("/", body, Content_Type=kind)
    assert (await fetch_page(site.url())).endswith(expected)


async def test_a_page_without_content_type_is_classified_by_its_body():
    answer = fetch_module.Answer(fetch_module.target_of("http://a.test/"), "", "", None, b"", False, None)
    html, text, binary = (replace(answer, body=body) for body in (b" <!DOCTYPE html><p>a&amp;b", b"a&amp;b", b"\x89\0"))
    assert fetch_module._readable(html)[1] == "a&b"
    assert fetch_module._readable(text)[1] == "a&amp;b"
    with pytest.raises(ToolError, match="does not say what it is"):
        fetch_module._readable(binary)


async def test_an_error_status_is_reported_with_the_start_of_its_body(site):
    site.page("/gone", "<h1>Gone</h1>" + "for good " * 100, status=410, Content_Type="text/html")
    text = await error_text(site.url("/gone"))
    assert text.startswith("'127.0.0.1' answered 410 Gone. It says: # Gone\n\nfor good")
    assert len(text) < 400
    site.page("/image", b"\x89PNG", status=503, Content_Type="image/png")
    assert await error_text(site.url("/image")) == "'127.0.0.1' answered 503 Service Unavailable."


async def test_a_long_page_is_read_in_parts(site):
    site.page("/", "".join(f"{number:09}\n" for number in range(4_500)), Content_Type="text/plain")
    first = await fetch_page(site.url())
    assert first.endswith("000001999\n\n[25,000 more characters; read on with start=20000]")
    assert "000002000\n" in await fetch_page(site.url(), start=20_000)
    last = await fetch_page(site.url(), start=40_000)
    assert last.startswith(f"[{site.url()}: characters 40,000 to 45,000 of 45,000]")
    assert last.endswith("000004499\n")
    assert "has no character 45,000: its text has 45,000 characters" in await error_text(site.url(), start=45_000)


async def test_a_page_without_text_is_reported(site):
    site.page("/", "<title>App</title><div id=app></div><script>run()</script>", Content_Type="text/html")
    assert await fetch_page(site.url()) == (
        f"[{site.url()}: no text; a page may be made by scripts, and they are not run]\nTitle: App"
    )


async def test_deep_html_is_read(site):
    """Deeper than Python's default recursion limit."""
    site.page("/", "".join(f"<div>{number}" for number in range(1_000)), Content_Type="text/html")
    text = await fetch_page(site.url())
    assert "\n998\n\n999" in text
    assert "tags were only left out" not in text


@pytest.mark.parametrize("page", ["end\n" + "<!--" * 200_000, "<div>" * 100_000 + "end\n"], ids=["comments", "depth"])
async def test_html_that_takes_too_long_is_given_up(site, monkeypatch, page):
    monkeypatch.setattr(fetch_module, "PARSE_WITHIN", 1.0)
    site.page("/", f"<p>a &lt; b<script>bad()</script>{page}", Content_Type="text/html")
    text = await fetch_page(site.url())
    assert "\na < b\n" in text
    assert "bad()" not in text
    assert "end\n[the page's" in text
    assert text.endswith("its tags were only left out]")


async def test_the_parser_process_gets_no_environment(site, monkeypatch):
    seen = []
    real = fetch_module.subprocess.run

    def run(*args, **options):
        seen.append(options["env"])
        return real(*args, **options)

    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    monkeypatch.setattr(fetch_module.subprocess, "run", run)
    site.page("/", PAGE, Content_Type="text/html")
    await fetch_page(site.url())
    assert "hunter2" not in str(seen)
    assert len(seen) == 1
