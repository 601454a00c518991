"""Providers of other packages: by an entry point or a loaded module; each fault is one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow

from mulligan import Agent, Background, Batch, DeclarationError, DurableAgent, Model, ModelRequestError
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.protocol import Reply, Request
from mulligan.endpoint import Endpoint
from mulligan.provider_plugin import ProviderPlugin, register_provider
from mulligan.testing import run_workflow
from mulligan.values import Message, Usage
from mulligan.worker.loading import load

SOURCE = """
from mulligan.providers import ProviderPlugin, Reply

class Acme:
    name = "acme"
    def __init__(self, endpoint=None):
        self.endpoint = endpoint
    def encode(self, message):
        return [message.text]
    async def complete(self, request):
        ...
    async def close(self):
        ...

plugin = ProviderPlugin(prefix="acme", create=Acme)
"""


class Echo:
    """Answers with the last message, and with its endpoint's address."""

    name = "echo"
    background = batch = None

    def __init__(self, endpoint: Endpoint | None) -> None:
        self._address = endpoint.base_url if endpoint else "default"

    def encode(self, message: Message) -> list[Any]:
        return [message.text]

    async def complete(self, request: Request) -> Reply:
        return Reply(text=f"{request.items[-1]} at {self._address}", calls=[], finish_reason="stop", usage=Usage())

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _own_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("mulligan.provider_plugin._plugins", {})
    yield
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, entry: str) -> None:
    """Install a package, as pip would, that has an entry point."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mulligan.providers]\n{entry}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_an_entry_point_makes_its_prefix_valid_in_declarations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "acme_one", SOURCE, "acme = acme_one:plugin")
    agent = Agent(name="a", model=["acme:large", Model("acme:large", base_url="http://localhost:1/v1")])
    providers = AvailableProviders({}, {each.name: each for each in agent.endpoints()})
    default, other = (providers.of(model) for model in agent.models)
    assert default is not other
    assert [default.endpoint, other.endpoint.base_url] == [None, "http://localhost:1/v1"]  # type: ignore[attr-defined]


FAULTS = [
    (SOURCE, "acme = acme_one:missing", "cannot be imported: AttributeError"),
    ("1 / 0", "acme = acme_one:plugin", "cannot be imported: ZeroDivisionError"),
    ("plugin = 5", "acme = acme_one:plugin", "must be a ProviderPlugin of that prefix, but is int"),
    (SOURCE.replace('"acme", create', '"other", create'), "acme = acme_one:plugin", "but is one of 'other'"),
]


@pytest.mark.parametrize(("source", "entry", "says"), FAULTS, ids=[says for *_, says in FAULTS])
def test_a_faulty_entry_point_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, entry: str, says: str
) -> None:
    install(tmp_path, monkeypatch, "acme_one", source, entry)
    with pytest.raises(DeclarationError) as raised:
        Agent(name="a", model="acme:large")
    assert says in str(raised.value)
    assert "agent 'a'" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_packages_of_one_prefix_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in ("one", "two"):
        install(tmp_path, monkeypatch, f"acme_{number}", SOURCE, f"acme = acme_{number}:plugin")
    with pytest.raises(DeclarationError, match="two packages have a provider 'acme': acme_one and acme_two"):
        Agent(name="a", model="acme:large")


def test_an_unknown_prefix_lists_those_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "acme_one", SOURCE, "acme = acme_one:plugin")
    with pytest.raises(
        DeclarationError, match="openai:NAME, openai-chat:NAME, anthropic:NAME, google:NAME, scripted:NAME, acme:NAME"
    ):
        Agent(name="a", model="nobody:large")


def test_a_loaded_module_registers_a_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = SOURCE + "from mulligan.providers import register_provider\nregister_provider(plugin)\n"
    (tmp_path / "acme_provider.py").write_text(source)
    (tmp_path / "acme_agents.py").write_text("from mulligan import Agent\na = Agent(name='a', model='acme:large')\n")
    loaded = load(["acme_provider", "acme_agents"])
    assert loaded.registry.agents["a"].models == ("acme:large",)
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (lambda: ProviderPlugin(prefix="Acme", create=Echo), "lower-case letters"),
        (lambda: ProviderPlugin(prefix="acme", create=5), "create must be a function"),  # type: ignore[arg-type]
        (lambda: register_provider(Echo), "takes a ProviderPlugin, not type"),  # type: ignore[arg-type]
        (lambda: register_provider(ProviderPlugin(prefix="openai", create=Echo)), "is built in"),
        (
            lambda: [
                register_provider(ProviderPlugin(prefix="acme", create=each))  # type: ignore[arg-type]
                for each in (Echo, Reply)
            ],
            "two providers have the prefix 'acme': .*Echo and .*Reply",
        ),
    ],
)
def test_a_faulty_registration_is_refused(register: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        register()


def test_the_same_plugin_may_be_registered_twice() -> None:
    plugin = register_provider(ProviderPlugin(prefix="echo", create=Echo))
    assert register_provider(ProviderPlugin(prefix="echo", create=Echo)) is plugin


@pytest.mark.parametrize(
    ("create", "says"), [(lambda endpoint: 5, "is a int without"), (lambda endpoint: 1 / 0, "ZeroDivisionError")]
)
def test_what_creates_no_provider_is_a_refused_request(create: Any, says: str) -> None:
    register_provider(ProviderPlugin(prefix="broken", create=create))
    with pytest.raises(ModelRequestError, match=says):
        AvailableProviders({}).of("broken:m")


@workflow.defn
class Ask:
    @workflow.run
    async def run(self, prompt: str) -> list[Any]:
        result = await DurableAgent("a").run(prompt)
        return [result.output, result.cost]


async def test_a_run_is_answered_by_the_plugins_provider_at_its_endpoint() -> None:
    register_provider(ProviderPlugin(prefix="echo", create=Echo, is_free=True))
    agent = Agent(name="a", model=Model("echo@near:m", base_url="http://near/v1"), max_cost=1.0)
    assert await run_workflow(Ask, "Hello", agents=[agent], models=[]) == ["Hello at http://near/v1", 0.0]


class Later(Echo):
    """It says that it answers in batches, and half of it is there."""

    def __init__(self, endpoint: Endpoint | None) -> None:
        super().__init__(endpoint)
        vars(self)["batch"] = self

    def batch_body(self, request: Request, *, plain: bool) -> bytes:
        return b"{}"


def test_a_plugin_may_have_the_parts_for_background_and_batches() -> None:
    """By its traits agents are declared with the features, and by its parts a worker finds how to answer."""
    register_provider(ProviderPlugin(prefix="later", create=Later, in_background=True, in_batches=True))
    register_provider(ProviderPlugin(prefix="slow", create=Later, in_batches=True))
    agent = Agent(name="a", model="slow:x", features=[Batch()])
    assert agent.features[0].facts(["slow:x", "echo:x"]) == {"models": ["slow:x"]}
    with pytest.raises(DeclarationError, match="Background is for models of"):
        Agent(name="b", model="slow:x", features=[Background()])
    providers = AvailableProviders({})
    part: Any = providers.batch_of("slow:x")
    assert part is providers.of("slow:x")
    assert providers.background_of("slow:x") is None
    with pytest.raises(ModelRequestError, match="'later' has no part 'background', though its plugin says so"):
        providers.of("later:x")
