"""The codec server as Temporal's programs use it: the command line, and the web UI in a browser."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload

from mulligan.client.encryption import EncryptionCodec, parse_keys
from mulligan.devserver import find_temporal
from tests.support.command_fixtures import ROOT, Outcome, Run, command

OLD, NEW, OTHER = (f"{name}:{base64.b64encode(name[0].encode() * 32).decode()}" for name in ("old", "new", "zero"))
KEYS = {"MULLIGAN_ENCRYPTION_KEYS": f"{NEW},{OLD}", "MULLIGAN_TASK_QUEUE": "encrypted"}
UI = "http://localhost:8233"
SECRET = "sesame-0815"
TOKEN = "0123456789abcdef" * 2
IN_CLEAR = base64.b64encode(SECRET.encode()).decode()
PLAIN = {"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": IN_CLEAR}


@asynccontextmanager
async def codec_server(environment: dict[str, str], *words: str) -> AsyncIterator[str]:
    """`mulligan codec-server` as a process. Asserts that it logs no content."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "mulligan"), "codec-server", "--port", "0", *words, env=environment | KEYS,
        cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    try:
        line = (await process.stderr.readline()).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line
        yield found[0]
        process.terminate()
        said = (await process.stderr.read()).decode()
        assert "Traceback" not in said
        assert SECRET not in said
        if environment.get("MULLIGAN_LOG_FORMAT") == "json":
            records = [json.loads(each) for each in [line, *said.splitlines()]]
            assert {"time", "level", "logger", "message"} == set.intersection(*map(set, records))
        assert (await process.stdout.read(), await process.wait()) == (b"", 0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture(scope="module")
async def url(environment: dict[str, str]) -> AsyncIterator[str]:
    async with codec_server(environment) as url:
        yield url


async def post(url: str, body: Any, path: str = "/decode", **headers: str | bytes) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {b"Content-Type": b"application/json"}
    sent |= {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in headers.items()}
    async with httpx2.AsyncClient() as client:
        return await client.post(url + path, content=content, headers=sent)


async def temporal(environment: dict[str, str], *words: str) -> Outcome:
    """Temporal's command line."""
    program = str(await find_temporal(lambda _: None))
    return await command(program, *words, "--address", environment["TEMPORAL_ADDRESS"], env=environment)


async def test_temporals_command_line_reads_and_starts_encrypted_runs(
    environment: dict[str, str], mulligan: Run, url: str
) -> None:
    """With the codec endpoint content is readable, and the runs that it starts are encrypted; without it nothing is readable."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", "tests.acceptance.support_agent", env=environment | KEYS, cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ran = await mulligan("start", "support", SECRET, "--id", "enc-1", "--wait", **KEYS)
        assert (ran.code, ran.out) == (0, "Ada has order 7.\n")
        asked = json.dumps({"agent": "support", "prompt": SECRET})
        executed = await temporal(
            environment, "workflow", "execute", "--type", "AgentWorkflow", "--task-queue", "encrypted",
            "--workflow-id", "enc-2", "--input", asked, "--codec-endpoint", url,
        )  # fmt: skip
        assert "Ada has order 7." in executed.out, executed.err
        for keys, says in (
            ("", "this run is encrypted; set MULLIGAN_ENCRYPTION_KEYS to the keys of its worker."),
            (OTHER, "MULLIGAN_ENCRYPTION_KEYS"),
        ):
            without = {**KEYS, "MULLIGAN_ENCRYPTION_KEYS": keys}
            for words in (("show", "enc-1"), ("tail", "enc-1")):
                unread = await mulligan(*words, **without)
                assert (unread.code, says in unread.err) == (2, True), unread.err
                assert "Traceback" not in unread.err
            listed = json.loads((await mulligan("list", "--json", **without)).out)
            assert [each["agent"] for each in listed if each["id"] == "enc-1"] == [None]
    finally:
        worker.terminate()
        await worker.wait()
    for run in ("enc-1", "enc-2"):
        show = ("workflow", "show", "-w", run, "--output", "json")
        clear, closed = await asyncio.gather(
            temporal(environment, *show, "--codec-endpoint", url), temporal(environment, *show)
        )
        assert (clear.code, closed.code) == (0, 0)
        texts = [_readable(json.loads(each.out)) for each in (clear, closed)]
        assert ["Ada has order 7." in text for text in texts] == [True, False]
        assert [SECRET in text for text in texts] == [True, False]


def _readable(value: Any) -> str:
    """All readable text of it, payloads included."""
    if isinstance(value, dict):
        return " ".join(f"{key} {_readable(each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(_readable, value))
    try:
        return f"{value} {base64.b64decode(str(value), validate=True).decode(errors='replace')}"
    except ValueError:
        return str(value)


async def test_the_web_ui_may_decode_and_other_origins_may_not(url: str) -> None:
    """The preflight and the request of Temporal's UI, with and without credentials."""
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,authorization-extras,content-type,x-namespace",
    }
    async with httpx2.AsyncClient() as client:
        allowed = await client.options(f"{url}/decode", headers={"Origin": UI, **asks})
        strange = await client.options(f"{url}/decode", headers={"Origin": "http://evil.example", **asks})
        about = await client.get(url)
    assert allowed.status_code == 204
    assert allowed.headers["Access-Control-Allow-Origin"] == UI
    assert allowed.headers["Access-Control-Allow-Methods"] == "POST"
    assert allowed.headers["Access-Control-Allow-Credentials"] == "true"
    assert set(asks["Access-Control-Request-Headers"].split(",")) == set(
        allowed.headers["Access-Control-Allow-Headers"].split(", ")
    )
    assert strange.status_code == 403
    assert "codec server" in about.text

    encoded = await post(url, {"payloads": [PLAIN]}, "/encode", Origin=UI)
    assert encoded.headers["Access-Control-Allow-Origin"] == UI
    decoded = await post(url, encoded.json(), "/default/decode", Origin=UI, **{"X-Namespace": "default"})
    assert decoded.json() == {"payloads": [PLAIN]}
    # After DNS rebinding the server is the page's own origin: no preflight is sent, so the server must refuse it.
    own = url.replace("127.0.0.1", "evil.example")
    for origin in ("http://evil.example", own, url, "null", "", f"{UI}.evil.example", "https://localhost:8233"):
        refused = await post(url, encoded.json(), Origin=origin)
        assert (refused.status_code, "Access-Control-Allow-Origin" in refused.headers) == (403, False), origin
        assert SECRET not in refused.text


async def sealed(key: str) -> dict[str, Any]:
    """A payload encrypted with `key`."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=SECRET.encode())
    [done] = await EncryptionCodec(parse_keys(key)).encode([payload])
    return json_format.MessageToDict(done)


BODIES: list[tuple[str, Any, int, str]] = [
    ("what is not encrypted", {"payloads": [PLAIN]}, 200, IN_CLEAR),
    ("an older key", {"seal": OLD}, 200, IN_CLEAR),
    ("nothing", {}, 200, "{}"),
    ("a key that is not here", {"seal": OTHER}, 422, "the key 'zero'"),
    ("another key of that name", {"seal": f"new{OTHER[4:]}"}, 422, "'new'"),
    ("changed", {"seal": NEW, "data": "AAAA" * 20}, 422, "'new'"),
    ("too short", {"seal": NEW, "data": "AAAA"}, 422, "'new'"),
    ("no data", {"seal": NEW, "data": ""}, 422, "'new'"),
    ("no JSON", SECRET.encode(), 400, "not JSON of temporal.api.common.v1.Payloads"),
    ("no UTF-8", b"\xff\xfe\x00", 400, "not JSON of"),
    ("other JSON", {"payload": [SECRET]}, 400, "not JSON of"),
    ("no base64", {"payloads": [{"data": 7, "metadata": {"x": SECRET}}]}, 400, "not JSON of"),
    ("a list", [SECRET], 400, "not JSON of"),
    ("deep", b"[" * 100_000, 400, "not JSON of"),
    ("empty", b"", 400, "not JSON of"),
    ("huge", b" " * (8 * 1024 * 1024 + 1), 413, "larger than"),
]


@pytest.mark.parametrize(("name", "body", "status", "says"), BODIES, ids=[name for name, *_ in BODIES])
async def test_an_invalid_body_gets_a_json_sentence_that_quotes_no_content(
    url: str, name: str, body: Any, status: int, says: str
) -> None:
    """A browser may read the response (CORS)."""
    if isinstance(body, dict) and "seal" in body:
        body = {"payloads": [PLAIN, {**await sealed(body["seal"]), **{k: v for k, v in body.items() if k == "data"}}]}
    answer = await post(url, body, Origin=UI)
    assert answer.status_code == status
    assert says in answer.text
    assert SECRET not in answer.text
    assert answer.headers["Access-Control-Allow-Origin"] == UI
    if status != 200:
        assert list(answer.json()) == ["error"]


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_broken_request_gets_400_and_is_not_logged(environment: dict[str, str], log_format: str) -> None:
    """The block asserts that stderr does not quote it, and has the format of a worker's log."""
    async with codec_server(environment | {"MULLIGAN_LOG_FORMAT": log_format}) as url:
        await send_broken(url)


async def send_broken(url: str) -> None:
    for sent in (
        f"{SECRET}\r\n\r\n",
        f"POST /decode HTTP/1.1\r\nContent-Length: {SECRET}\r\n\r\n",
        "GET /\0 HTTP/1.1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent.encode())
        assert b" 400 " in await reader.readline()
        writer.close()
    async with httpx2.AsyncClient() as client:
        assert (await client.get(f"{url}/decode")).status_code == 405
        assert (await client.post(f"{url}/a/b/decode")).status_code == 404
    packed = await post(url, SECRET.encode(), **{"Content-Encoding": "gzip"})
    assert packed.status_code == 400


async def test_with_a_token_only_requests_that_send_it_are_served(environment: dict[str, str], tmp_path: Path) -> None:
    """Temporal's command line sends it by `--codec-auth`."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    async with codec_server(
        environment, "--token-file", str(tmp_path / "token"), "--ui-origin", "https://UI.Example:443/"
    ) as url:
        body = {"payloads": [await sealed(NEW)]}
        for header in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer é".encode()},
        ):
            refused = await post(url, body, **header)
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        answered = await post(url, body, Origin="https://ui.example", Authorization=f"Bearer {TOKEN}")
        assert answered.json() == {"payloads": [PLAIN]}
        refused = await post(url, body, Origin="https://ui.example")
        assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, "https://ui.example")
        words = ("--codec-endpoint", url + "/", "--codec-auth")
        started = await temporal(
            environment, "workflow", "start", "--type", "AgentWorkflow", "--task-queue", "nobody", "-w", "enc-3",
            "--input", f'"{SECRET}"', *words, f"Bearer {TOKEN}",
        )  # fmt: skip
        assert started.code == 0, started.err
        show = ("workflow", "show", "-w", "enc-3", "--detailed", *words)
        assert SECRET in (await temporal(environment, *show, f"Bearer {TOKEN}")).out
        by_environment = environment | {"TEMPORAL_CODEC_ENDPOINT": url, "TEMPORAL_CODEC_AUTH": f"Bearer {TOKEN}"}
        assert SECRET in (await temporal(by_environment, "workflow", "show", "-w", "enc-3", "--detailed")).out
        # It retries until its timeout.
        refused_too = await temporal(environment, *show, "Bearer x", "--command-timeout", "2s")
        assert (refused_too.code, SECRET in refused_too.out) == (1, False)


WRONG: list[tuple[list[str], dict[str, str], str]] = [
    ([], {"MULLIGAN_ENCRYPTION_KEYS": ""}, "MULLIGAN_ENCRYPTION_KEYS is not set"),
    ([], {"MULLIGAN_ENCRYPTION_KEYS": SECRET}, "MULLIGAN_ENCRYPTION_KEYS: entry 1 is not a key"),
    (["--host", "0.0.0.0"], {}, "--host 0.0.0.0 can be reached from other machines: give a --token-file"),
    (["--host", "example.com"], {}, "give a --token-file"),
    (["--host", "192.0.2.1", "--token-file", "GOOD"], {}, "nothing can listen at 192.0.2.1 port 8081"),
    (["--token-file", "nowhere"], {}, "--token-file nowhere: No such file or directory."),
    (["--token-file", "README.md"], {}, "--token-file README.md has no valid token"),
    (["--ui-origin", "*"], {}, "'*' is not an origin"),
    (["--ui-origin", "http://localhost:8233/namespaces"], {}, "is not an origin; give the scheme and the host"),
    (["--ui-origin", "localhost:8233"], {}, "'localhost:8233' is not an origin"),
    (["--port", "70000"], {}, "must be at most 65535"),
]


@pytest.mark.parametrize(("words", "env", "says"), WRONG, ids=[says for *_, says in WRONG])
async def test_wrong_use_of_the_codec_server_exits_with_2_and_no_secret(
    mulligan: Run, tmp_path: Path, words: list[str], env: dict[str, str], says: str
) -> None:
    """Exit code 2, a sentence on stderr, no traceback and no secret."""
    (tmp_path / "token").write_text(TOKEN)
    words = [str(tmp_path / "token") if word == "GOOD" else word for word in words]
    ran = await mulligan("codec-server", *words, **{**KEYS, **env})
    assert says in " ".join(ran.err.replace("│", " ").split())
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    assert SECRET not in ran.err
