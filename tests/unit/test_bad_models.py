"""Faults in the declaration of models, for each provider and each way to give an address: one sentence, before any request."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Compaction, DeclarationError, Model
from mulligan.activities.registry import Registry
from mulligan.provider_plugin import BUILT_IN
from mulligan.worker.all_endpoints import check_endpoints

PROVIDERS = [provider for provider, traits in BUILT_IN.items() if traits.has_endpoints]
SECRET = "hunter2"
BAD_URLS = [
    "localhost:8000/v1",
    "htp://localhost/v1",
    "http://",
    "http:///v1",
    "http://localhost:port/v1",
    "http://localhost:99999/v1",
    "http://[::1/v1",
    "http://local host/v1",
    "http://localhost/v1\n",
    "/v1",
    "ws://localhost/v1",
    f"ada:{SECRET}@localhost/v1",
]
VARIABLES = [(provider, variable) for provider in PROVIDERS for variable in BUILT_IN[provider].url_variables]


def is_one_sentence(error: pytest.ExceptionInfo[DeclarationError]) -> bool:
    text = str(error.value)
    return text.endswith(".") and "\n" not in text and ". " not in text and SECRET not in text


def registry_of(model: Any) -> Registry:
    return Registry([Agent(name="one", model=model)])


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS:
        for variable in (*BUILT_IN[provider].url_variables, *BUILT_IN[provider].key_variables):
            monkeypatch.delenv(variable, raising=False)


def test_each_provider_with_endpoints_has_variables_for_its_key_and_its_address() -> None:
    assert PROVIDERS == ["openai", "openai-chat", "anthropic", "google"]
    assert all(BUILT_IN[provider].url_variables and BUILT_IN[provider].key_variables for provider in PROVIDERS)


@pytest.mark.parametrize("url", BAD_URLS)
@pytest.mark.parametrize(("provider", "variable"), VARIABLES)
def test_a_bad_address_in_the_environment_is_one_sentence_as_the_worker_starts(
    monkeypatch: pytest.MonkeyPatch, provider: str, variable: str, url: str
) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(DeclarationError, match=f"^{variable} is .* it must be an http:// or https:// URL") as error:
        check_endpoints(registry_of(f"{provider}:m"), "")
    assert is_one_sentence(error)
    assert check_endpoints(registry_of("scripted:m"), "") == []  # who does not use it is not concerned


@pytest.mark.parametrize("url", BAD_URLS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_bad_address_of_a_model_or_of_the_operators_file_is_one_sentence(
    tmp_path: Path, provider: str, url: str
) -> None:
    with pytest.raises(DeclarationError, match=f"{provider}(@.*)?:m.*base_url") as error:
        Model(f"{provider}:m", base_url=url)
    assert is_one_sentence(error)
    file = tmp_path / "endpoints.toml"
    file.write_text(f'[gpu]\nbase_url = "{url}"\n'.replace("v1\n", "v1\\n"))
    with pytest.raises(DeclarationError, match=r"endpoints\.toml: the endpoint 'gpu': base_url") as error:
        check_endpoints(registry_of(f"{provider}@gpu:m"), str(file))
    assert is_one_sentence(error)


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"])
def test_an_empty_address_is_refused_where_the_package_would_use_it(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Google's package takes an empty variable for one that is not set."""
    monkeypatch.setenv(variable, "")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    with pytest.raises(DeclarationError, match=f"^{variable} is '';"):
        check_endpoints(registry_of(f"{variable.partition('_')[0].lower()}:m"), "")
    assert check_endpoints(registry_of("google:m"), "") == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_missing_key_is_a_warning_of_one_sentence_for_default_and_named_endpoints(
    monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    variable = BUILT_IN[provider].key_variables[0]
    says = "is not set; the requests to {} will fail."
    assert check_endpoints(registry_of(f"{provider}:m"), "") == [f"{provider}: {variable} {says.format('its models')}"]
    own = Model(f"{provider}@gpu:m", base_url="http://gpu/v1", api_key_env="GPU_KEY_OF_NOBODY")
    assert check_endpoints(registry_of(own), "") == [f"endpoint 'gpu': GPU_KEY_OF_NOBODY {says.format('it')}"]
    monkeypatch.setenv(variable, "k")
    assert check_endpoints(registry_of(f"{provider}:m"), "") == []


@pytest.mark.parametrize("provider", [provider for provider in PROVIDERS if BUILT_IN[provider].extra])
@pytest.mark.parametrize(
    "declare",
    [lambda name: Agent(name="one", model=name), lambda name: Model(name, base_url="http://x")],
    ids=["model", "Model"],
)
def test_a_provider_without_its_extra_cannot_be_declared(
    monkeypatch: pytest.MonkeyPatch, provider: str, declare: Any
) -> None:
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        "mulligan.extras.find_spec", lambda name: None if name.startswith(provider) else installed(name)
    )
    with pytest.raises(
        DeclarationError, match=rf"the model '{provider}:m' needs the extra '{provider}'.*uv add"
    ) as error:
        declare(f"{provider}:m")
    assert is_one_sentence(error)


@pytest.mark.parametrize("name", ["opnai:m", "openai", "openai:", ":m", "", "openai@:m", "openai@a b:m", "OpenAI:m"])
@pytest.mark.parametrize(
    "declare",
    [
        lambda name: Agent(name="one", model=name),
        lambda name: Agent(name="one", model=["scripted:a", name]),
        lambda name: Agent(name="one", model="scripted:a", features=[Compaction(at=1_000, model=name)]),
        lambda name: Model(name, base_url="http://x"),
    ],
    ids=["model", "list", "compact_model", "Model"],
)
def test_an_unknown_provider_or_a_misspelled_name_is_refused_with_the_spellings(declare: Any, name: str) -> None:
    with pytest.raises(DeclarationError, match=r"model") as error:
        declare(name)
    assert "\n" not in str(error.value)
    assert repr(name) in str(error.value)


def test_a_worker_with_a_bad_address_ends_with_one_line_and_the_code_for_bad_declarations(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from mulligan import Agent\none = Agent(name='one', model='google:m')\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mulligan", "worker", "--load", "own"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": "", "PYTHONPATH": str(tmp_path), "GOOGLE_GEMINI_BASE_URL": "generative.test", "GEMINI_API_KEY": "k"},
    )  # fmt: skip
    assert ran.returncode == 2
    [line] = ran.stderr.splitlines()
    assert "GOOGLE_GEMINI_BASE_URL is 'generative.test'; it must be an http:// or https:// URL" in line
