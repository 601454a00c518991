"""`Model` and named endpoints: how they are declared, which faults are refused, and what never shows a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Compaction, DeclarationError, InvalidRunInputError, Model, RunInput, ask_model
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.protocol import Request, Unavailable
from mulligan.activities.registry import Registry
from mulligan.endpoint import Endpoint, read_endpoints
from mulligan.errors import ModelRequestError
from mulligan.model_name import ModelName
from mulligan.prices import Price, Prices
from mulligan.run_input import parse_run_input
from mulligan.values import AssistantMessage
from mulligan.wire.agent_facts import Definition
from mulligan.worker.all_endpoints import check_endpoints
from tests.support.openai_server import Failure, OpenAIServer, Turn
from tests.support.provider_fixtures import GO

CANARY = "sk-canary-4711"
LOCAL = "http://localhost:11434/v1"


def request_of(model: str, **more: Any) -> Request:
    return Request(
        model=model,
        definition=Definition(instructions="", tools=[]),
        items=more.pop("items", []),
        messages=[GO],
        **more,
    )


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (Model("openai-chat:llama3", base_url=LOCAL), "openai-chat@localhost-11434-v1:llama3"),
        (Model("openai-chat@gpu:llama3", base_url=LOCAL), "openai-chat@gpu:llama3"),
        (Model("openai@second:ft:gpt:x", api_key_env="SECOND_KEY"), "openai@second:ft:gpt:x"),
    ],
)
def test_a_model_is_named_with_its_endpoint_wherever_a_name_may_stand(declared: Model, name: str) -> None:
    agent = Agent(
        name="a",
        model=["scripted:x", declared],
        features=[Compaction(at=1000, model=declared)],
        repair=ask_model(declared),
    )
    assert agent.models == ("scripted:x", name)
    assert agent.all_models(agent.models) == ["scripted:x", name]
    assert Registry([agent]).endpoints == {declared.endpoint.name: declared.endpoint}
    assert RunInput(agent="a", prompt="p", model=declared).model == name
    assert str(ModelName.parse(name)) == name


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("openai-chat:x", {"base_url": "localhost:11434"}, "must be an http:// or https:// URL"),
    ("openai-chat:x", {"base_url": "ftp://h/v1"}, "must be an http:// or https:// URL"),
    ("openai-chat:x", {"base_url": "http://[::1/v1"}, "must be an http:// or https:// URL"),
    ("openai-chat:x", {"base_url": "http://h:99999/v1"}, "must be an http:// or https:// URL"),
    ("openai-chat:x", {"base_url": f"http://user:{CANARY}@h/v1"}, "a user or a password"),
    ("openai-chat:x", {"base_url": f"http://h/v1?key={CANARY}"}, "'?' or '#'"),
    ("openai-chat:x", {"base_url": LOCAL, "api_key_env": CANARY}, "name of an environment variable"),
    ("openai-chat:x", {"base_url": LOCAL, "headers": {"X-Key": f"{CANARY}\n"}}, "printable ASCII"),
    ("openai-chat:x", {"base_url": LOCAL, "headers": {"X Key": CANARY}}, "not a header's name"),
    ("openai-chat:x", {"base_url": LOCAL, "headers": CANARY}, "headers has the type str; it must be a table"),
    ("openai-chat:x", {"base_url": LOCAL, "timeout": 0}, "more than 0 seconds"),
    ("openai-chat:x", {}, "needs a base_url"),
    ("openai-chat@a b:x", {"base_url": LOCAL}, "an endpoint's name"),
    ("openai-chat@:x", {"base_url": LOCAL}, "must be one of"),
    ("scripted:x", {"base_url": LOCAL}, "has no endpoints"),
    ("nobody:x", {"base_url": LOCAL}, "must be one of"),
]


@pytest.mark.parametrize(("model", "options", "says"), FAULTS, ids=[f"{each[2]}-{i}" for i, each in enumerate(FAULTS)])
def test_a_fault_of_a_model_is_one_sentence_without_any_key(model: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        Model(model, **options)
    text = str(raised.value)
    assert says in text
    assert text.startswith(f"Model({model!r})")
    assert CANARY not in text
    assert "\n" not in text


FILES = [
    ("[gpu]\nbase_url = ", "is not TOML"),
    ('gpu = "http://h/v1"\n', "is not a table"),
    (f'[gpu]\nbase_url = "http://h/v1"\napi_key = "{CANARY}"\n', "api_key_env names a variable"),
    ("[gpu]\n", "neither base_url nor api_key_env"),
    ('["a b"]\nbase_url = "http://h/v1"\n', "a name has letters"),
    ('[gpu]\nbase_url = "h"\n', "http:// or https://"),
    ("[gpu]\nbase_url = 5\n", "must be a text"),
    ('[gpu]\nbase_url = "http://h/v1"\nheaders = {X-Key = 5}\n', "printable ASCII"),
]


@pytest.mark.parametrize(("text", "says"), FILES, ids=[says for _, says in FILES])
def test_a_fault_in_the_file_is_one_sentence_that_names_the_file(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text(text)
    with pytest.raises(DeclarationError) as raised:
        read_endpoints(str(file))
    assert says in str(raised.value)
    assert f"MULLIGAN_ENDPOINTS names {file}" in str(raised.value)
    assert CANARY not in str(raised.value)


def test_a_missing_and_an_excessive_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="cannot be read: No such file"):
        read_endpoints(str(tmp_path / "none.toml"))
    (tmp_path / "large.toml").write_text("#" * 1_000_001)
    with pytest.raises(DeclarationError, match="more than 1,000,000 bytes"):
        read_endpoints(str(tmp_path / "large.toml"))


def test_two_different_endpoints_of_one_name_are_refused() -> None:
    one = Agent(name="one", model=Model("openai-chat:x", base_url=LOCAL))
    other = Agent(name="other", model=Model("openai-chat:x", base_url=LOCAL, api_key_env="OTHER"))
    with pytest.raises(DeclarationError, match="different endpoints of the name 'localhost-11434-v1'"):
        Registry([one, other])


def test_an_agent_whose_endpoint_nobody_declares_is_refused_and_a_missing_key_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry([Agent(name="a", model="openai-chat@gpu:x")])
    with pytest.raises(DeclarationError, match=r"names an endpoint that this worker does not know \(it knows none\)"):
        check_endpoints(registry, "")
    file = tmp_path / "endpoints.toml"
    file.write_text(
        '[gpu]\nbase_url = "http://h/v1"\napi_key_env = "GPU_KEY"\nheaders = {X-Key = "${GPU_HEADER}"}\ntimeout = 5\n'
    )
    assert check_endpoints(registry, str(file)) == [
        f"endpoint 'gpu': {variable} is not set; the requests to it will fail."
        for variable in ("GPU_KEY", "GPU_HEADER")
    ]
    monkeypatch.setenv("GPU_KEY", "k")
    monkeypatch.setenv("GPU_HEADER", "h")
    assert check_endpoints(registry, str(file)) == []


def test_a_missing_key_of_a_providers_default_endpoint_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)  # live tests of this process set them
    registry = Registry([Agent(name="a", model=["anthropic:x", "google:y", "google:z"])])
    assert check_endpoints(registry, "") == [
        "anthropic: ANTHROPIC_API_KEY is not set; the requests to its models will fail.",
        "google: GEMINI_API_KEY is not set; the requests to its models will fail.",
    ]
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "t")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    assert check_endpoints(registry, "") == []


@pytest.mark.parametrize("model", [{"model": "openai-chat:x", "base_url": "http://attacker"}, {"key": CANARY}])
def test_a_runs_input_cannot_carry_an_address_or_a_key(model: dict[str, str]) -> None:
    import json

    with pytest.raises(
        InvalidRunInputError, match="addresses and keys of models are not part of a run's input"
    ) as raised:
        parse_run_input(json.dumps({"agent": "a", "prompt": "p", "model": model}).encode())
    assert CANARY not in str(raised.value)


def test_nothing_that_is_printed_has_the_key_or_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_KEY", CANARY)
    model = Model("openai-chat:x", base_url=LOCAL, api_key_env="LLAMA_KEY", headers={"X-Key": CANARY})
    agent = Agent(name="a", model=model)
    assert CANARY not in f"{model!r} {model} {model.endpoint!r} {agent!r} {Registry([agent]).endpoints}"
    assert model.endpoint.api_key() == CANARY


async def test_each_endpoint_gets_its_own_key_and_headers_and_never_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-openai")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Default: of-openai")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin-of-openai")
    monkeypatch.setenv("GPU_KEY", CANARY)
    monkeypatch.setenv("GPU_HEADER", "from-the-environment")
    async with OpenAIServer() as keyed, OpenAIServer() as keyless:
        endpoints = {
            "gpu": Endpoint(
                name="gpu", base_url=keyed.base_url, api_key_env="GPU_KEY", headers={"X-Gate": "${GPU_HEADER}"}
            ),
            "free": Endpoint(name="free", base_url=keyless.base_url),
        }
        providers = AvailableProviders({}, endpoints)
        for server, prefix in ((keyed, "openai-chat@gpu"), (keyless, "openai-chat@free"), (keyed, "openai@gpu")):
            server.script("m", lambda body, nth: Turn("ok"))
            provider = providers.of(f"{prefix}:m")
            assert provider is providers.of(f"{prefix}:other")
            assert (await provider.complete(request_of("m", items=provider.encode(GO)))).text == "ok"
        sent = [each.headers for each in (*keyed.requests, *keyless.requests)]
        assert [each["authorization"] for each in sent] == [f"Bearer {CANARY}", f"Bearer {CANARY}", "Bearer none"]
        assert [each.get("x-gate") for each in sent] == ["from-the-environment", "from-the-environment", None]
        assert not any("of-openai" in str(each) for each in sent)
        keyed.script("m", lambda body, nth: Turn(failure=Failure(401, f"Incorrect key {CANARY}")))
        with pytest.raises(ModelRequestError, match=r"Is GPU_KEY right\?") as refused:
            await providers.of("openai-chat@gpu:m").complete(request_of("m", items=provider.encode(GO)))
        assert CANARY not in str(refused.value)
        await providers.close()


async def test_a_key_that_is_not_set_is_named_and_the_default_key_is_not_sent_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.delenv("GPU_KEY", raising=False)
    async with OpenAIServer() as server:
        gpu = Endpoint(name="gpu", base_url=server.base_url, api_key_env="GPU_KEY")
        providers = AvailableProviders({}, {"gpu": gpu})
        with pytest.raises(ModelRequestError, match="set GPU_KEY"):
            await providers.of("openai-chat@gpu:m").complete(request_of("m"))
        assert server.requests == []


async def test_an_endpoint_that_this_worker_does_not_know_is_unavailable_as_another_worker_may_know_it() -> None:
    providers = AvailableProviders({}, {"gpu": Endpoint(name="gpu", base_url=LOCAL)})
    with pytest.raises(Unavailable, match="does not know the endpoint 'cpu'; it knows: gpu"):
        await providers.of("openai-chat@cpu:m").complete(request_of("m"))


def test_an_endpoints_timeout_only_shortens_the_agents() -> None:
    providers = AvailableProviders({}, {"gpu": Endpoint(name="gpu", base_url=LOCAL, timeout=5)})
    assert [providers.timeout(model, 60) for model in ("openai-chat@gpu:m", "openai-chat:m")] == [5, 60]
    assert providers.timeout("openai-chat@gpu:m", 3) == 3


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
def test_what_only_one_endpoint_understands_is_not_sent_to_another(api: str) -> None:
    data: dict[str, Any] = {
        "openai": [{"type": "reasoning", "id": "r", "encrypted_content": "e", "summary": []}],
        "openai-chat": {"reasoning_content": "thoughts"},
    }
    providers = AvailableProviders({}, {name: Endpoint(name=name, base_url=LOCAL) for name in ("a", "b")})
    message = AssistantMessage(role="assistant", text="Hi.", tool_calls=[], provider_data={f"{api}@a": data[api]})
    own, others, default = (str(providers.of(f"{api}{at}:m").encode(message)) for at in ("@a", "@b", ""))
    assert "reasoning" in own
    assert "reasoning" not in others
    assert "reasoning" not in default


def test_the_price_of_an_endpoints_model_comes_before_that_of_its_provider() -> None:
    prices = Prices({"m": Price(input=3, output=3), "openai-chat:m": Price(input=2, output=2)})
    assert prices.of("openai-chat@gpu:m") == Price(input=2, output=2)
    own = {"openai-chat@gpu:m": Price(input=1, output=1), "m": Price(input=3, output=3)}
    assert Prices(own).of("openai-chat@gpu:m") == Price(input=1, output=1)
    assert Prices(own).of("openai-chat@cpu:m") == Price(input=3, output=3)
