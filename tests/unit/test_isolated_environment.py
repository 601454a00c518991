"""Isolated calls have the worker's environment without secrets, and cannot read those of the processes around them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from mulligan import Agent, McpServer, Model, OAuthClientCredentials
from mulligan.activities.registry import Registry
from mulligan.activities.tool_running.isolated import ChildProcesses
from mulligan.activities.tool_running.isolated_environment import isolated_environment, secret_names
from mulligan.client.settings import Settings
from mulligan.endpoint import Endpoint
from mulligan.provider_plugin import BUILT_IN, ProviderPlugin, _plugins
from mulligan.providers import Provider
from tests.support import isolated_functions as functions

MUCH = 60.0
MODULE = functions.__name__
WHERE_KEYS_ARE = {
    *("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"),
    *("ANTHROPIC_PROFILE", "ANTHROPIC_FEDERATION_RULE_ID"),
}
SECRETS = {
    *(f"MULLIGAN_{name}".upper() for name, each in Settings.model_fields.items() if each.annotation is SecretStr),
    *({name for traits in BUILT_IN.values() for name in traits.key_variables} - WHERE_KEYS_ARE),
    *("OPENAI_WEBHOOK_SECRET", "OPENAI_CUSTOM_HEADERS", "AZURE_OPENAI_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("TEMPORAL_API_KEY", "TEMPORAL_TLS_CLIENT_KEY_DATA", "TEMPORAL_CODEC_AUTH", "TEMPORAL_GRPC_META_AUTHORIZATION"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "openai_api_key"),
}
ORDINARY = {
    *("PATH", "HOME", "PWD", "MULLIGAN_WORKSPACE", "MULLIGAN_FETCH_ALLOW", "MULLIGAN_LOAD", "OPENAI_BASE_URL"),
    *("GITHUB_TOKEN", "PGPASSWORD", "DATABASE_URL", "MAIL_API_KEY"),
    *(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "GIT_AUTHOR_NAME",
        "GIT_ASKPASS",
        "PYTHONPATH",
    ),
}
NAMES = st.sampled_from(sorted(SECRETS | ORDINARY)) | st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True)


@given(names=st.sets(NAMES), declared=st.sets(NAMES), passed=st.sets(NAMES), removed=st.sets(NAMES))
def test_a_secret_is_there_only_if_it_is_named(
    names: set[str], declared: set[str], passed: set[str], removed: set[str]
) -> None:
    rules = [*passed, *(f"-{name}" for name in removed)]
    environment = isolated_environment(dict.fromkeys(names, "value"), declared, rules)
    assert environment.keys() <= names
    assert not environment.keys() & removed
    assert not environment.keys() & (SECRETS | declared) - passed
    assert (names & (passed | (ORDINARY - declared))) - removed <= environment.keys()


def test_what_declarations_refer_to_is_secret() -> None:
    servers = [
        McpServer("program", command=["program"], env={"A": "x ${OF_PROGRAM}", "B": "${HOME}/folder"}),
        McpServer("site", url="https://example.com", headers={"X": "${OF_SITE}", "Y": lambda: "${NOT_A_REFERENCE}"}),
        McpServer(
            "login",
            url="https://example.com",
            auth=OAuthClientCredentials("${CLIENT}", client_secret="${OF_CLIENT}", issuer="https://example.com"),
        ),
    ]
    model = Model("openai-chat@own:m", base_url="https://example.com", api_key_env="OWN", headers={"Z": "${OF_MODEL}"})
    registry = Registry([Agent(name="agent", model=model, mcp=servers)])
    assert secret_names(registry, registry.endpoints.values()) == {
        *("OF_PROGRAM", "OF_SITE", "CLIENT", "OF_CLIENT", "OWN", "OF_MODEL")
    }


def test_keys_of_provider_plugins_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(_: Endpoint | None) -> Provider:
        raise AssertionError("no model is called")

    monkeypatch.setitem(_plugins, "my-lab", ProviderPlugin(prefix="my-lab", create=create))
    for name in ("MY_LAB_API_KEY", "MY_LAB_REGION", "MY_LABEL_KEY"):
        monkeypatch.setenv(name, "value")
    assert secret_names(Registry([]), ()) == {"MY_LAB_API_KEY"}


async def test_no_secret_is_anywhere_in_the_environment_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*SECRETS, "OF_MODEL", "ORDINARY", "MULLIGAN_WORKSPACE"}:
        monkeypatch.setenv(name, "value")
    children = ChildProcesses(secret_names={"OF_MODEL"})

    async def names_in_call(*env: str) -> set[str]:
        names = sorted({*SECRETS, "OF_MODEL", "ORDINARY", "MULLIGAN_WORKSPACE"})
        text = await children.run_tool(f"{MODULE}:environments", (names,), limit=MUCH, env=env)
        assert isinstance(text, str)
        in_python, in_kernel, in_program = json.loads(text).values()
        assert in_python == in_kernel == in_program
        return set(in_python)

    try:
        assert await names_in_call() == {"ORDINARY", "MULLIGAN_WORKSPACE"}
        named = {"OPENAI_API_KEY", "OF_MODEL", "MULLIGAN_WORKSPACE"}
        assert await names_in_call("OPENAI_API_KEY", "OF_MODEL", "-ORDINARY", "NOT_SET") == named
        assert await names_in_call() == {"ORDINARY", "MULLIGAN_WORKSPACE"}
    finally:
        await children.close()


READ_PARENTS = f"""
import asyncio
from mulligan.activities.tool_running.isolated import ChildProcesses
async def main():
    children = ChildProcesses(memory_bytes=200_000_000)
    print(await children.run("{MODULE}:parents_open", limit={MUCH}))
    try:
        await children.run("tests.support.outliving_calls:share_memory", (400,), limit={MUCH})
    except Exception as error:
        print(error)
    await children.close()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_a_call_cannot_read_the_processes_of_others() -> None:
    """Root may read every process: there, without its privileges. What its memory counts is read in another way then."""
    without = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
    if without and shutil.which(without[0]) is None:
        pytest.skip("root needs setpriv to run without its privileges")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [*without, sys.executable, "-c", READ_PARENTS], env=environment, check=True, capture_output=True, text=True
    )
    readable, memory = result.stdout.splitlines()
    assert readable == "[]"
    assert "200 MB" in memory
