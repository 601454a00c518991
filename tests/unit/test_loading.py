"""Loading modules: the agents, scripts, workflows and activities found in them, and the errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import Agent, DeclarationError
from mulligan.activities.models.scripted import Scripted
from mulligan.script import BUILT_IN_SCRIPTS
from mulligan.worker.loading import SHIPPED, load, modules_to_load

AGENT = "from mulligan import Agent\n{name} = Agent(name='{name}', model='scripted:x')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder is a user's project, whose modules are unloaded after the test."""
    known, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("t_"):
            del sys.modules[name]
    sys.path[:] = path


def write(**modules: str) -> None:
    """Write modules; the key `shop__agents` is the module `shop.agents`."""
    for name, text in modules.items():
        path = Path(name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_the_shipped_agents_are_modules() -> None:
    loaded = load(SHIPPED)
    assert loaded.modules == SHIPPED
    assert sorted(loaded.registry.agents) == ["assistant", "demo"]
    assert loaded.workflows == ()


@pytest.mark.parametrize(
    ("named", "options", "with_shipped", "loaded"),
    [
        ([], [], False, [*SHIPPED]),
        ([], ["a", "b, c"], False, ["a", "b", "c"]),
        (["m"], [], False, ["m"]),
        (["m"], ["a,"], False, ["m", "a"]),
        (["m"], ["a"], True, [*SHIPPED, "m", "a"]),
    ],
)
def test_the_shipped_agents_are_served_where_no_module_is_named_or_on_request(
    named: list[str], options: list[str], with_shipped: bool, loaded: list[str]
) -> None:
    """`named` is MULLIGAN_LOAD, `options` the values of --load, which may have several modules, separated by commas."""
    assert modules_to_load(named, options, with_shipped=with_shipped) == loaded


ACTIVITY = """
from temporalio import activity

@activity.defn{name}
async def {function}(text: str) -> str:
    return text
"""


def test_activities_that_a_module_defines_are_served() -> None:
    """Those with `@activity.defn`, but not imported ones."""
    write(t_post=ACTIVITY.format(name="(name='stamp')", function="stamp_it"))
    write(t_shop="from t_post import stamp_it\n" + ACTIVITY.format(name="", function="pack") + "def helper(): ...\n")
    loaded = load(["t_shop"])
    assert [each.__name__ for each in loaded.activities] == ["pack"]
    assert [each.__name__ for each in load(["t_shop", "t_post"]).activities] == ["pack", "stamp_it"]


@pytest.mark.parametrize(
    ("first", "second", "whose"), [("call_tool", "other", "Mulligan itself"), ("pack", "pack", "t_a.first")]
)
def test_two_activities_of_one_type_are_refused(first: str, second: str, whose: str) -> None:
    write(t_a=ACTIVITY.format(name=f"(name='{first}')", function="first"))
    write(t_b=ACTIVITY.format(name=f"(name='{second}')", function="second"))
    with pytest.raises(DeclarationError, match=rf"{whose} already has an activity of type '{first}'"):
        load(["t_a", "t_b"])


def test_the_current_folder_shadows_nothing(folder: Path) -> None:
    """It is the last entry of `sys.path`."""
    write(t_shop=AGENT.format(name="bot"))
    load(["t_shop"])
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize("spelling", ["t_shop.agents", "t_shop/agents.py", "./t_shop/agents.py"])
def test_a_module_is_loaded_by_its_name_or_file_with_all_its_agents_and_scripts(spelling: str) -> None:
    """Whatever the names of their variables."""
    write(
        t_shop__agents="from mulligan import Agent, Say, Script\n"
        "one = Agent(name='first', model='scripted:x')\n"
        "_two = Agent(name='second', model='scripted:x')\n"
        "again = one\n"
        "says = Script('t_says', [Say('hello')])\n"
    )
    loaded = load([spelling])
    assert sorted(loaded.registry.agents) == ["first", "second"]
    assert loaded.modules == ("t_shop.agents",)
    assert "t_says" in loaded.registry.scripts
    assert isinstance(loaded.registry.agents["first"], Agent)


def test_agents_in_lists_and_dicts_of_a_module_are_served() -> None:
    made = "from mulligan import Agent\nmake = lambda name: Agent(name=name, model='scripted:x')\n"
    write(t_held=f"{made}team = [make('a'), make('b')]\nby_name = {{'c': make('c')}}\npair = (make('d'), 5)\n")
    loaded = load(["t_held"])
    assert sorted(loaded.registry.agents) == ["a", "b", "c", "d"]
    assert loaded.modules_of_agents["c"] == "t_held"


def test_a_module_or_agent_loaded_twice_is_served_once() -> None:
    """A module that is named twice, or an agent that another module imports."""
    write(t_a=AGENT.format(name="ann"), t_b=AGENT.format(name="bob") + "from t_a import ann\n")
    loaded = load(["t_a", "t_b", "t_a.py", "t_a"])
    assert sorted(loaded.registry.agents) == ["ann", "bob"]
    assert loaded.modules == ("t_a", "t_b")


WORKFLOW = """
from temporalio import workflow

@workflow.defn
class {name}:
    @workflow.run
    async def run(self) -> None: ...
"""


def test_workflows_are_served_where_they_are_defined() -> None:
    """Together with the agents of the module; neither imported workflows nor subclasses without a decorator."""
    write(
        t_flow=AGENT.format(name="ann") + WORKFLOW.format(name="Mine") + "class Plain(Mine): ...\nSame = Mine\n",
        t_uses="from t_flow import Mine\n" + WORKFLOW.format(name="Own"),
    )
    loaded = load(["t_flow"])
    assert [each.__name__ for each in loaded.workflows] == ["Mine"]
    assert sorted(loaded.registry.agents) == ["ann"]
    assert [each.__name__ for each in load(["t_uses"]).workflows] == ["Own"]
    assert [each.__name__ for each in load(["t_flow", "t_uses"]).workflows] == ["Mine", "Own"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def (:\n", "{folder}/t_bad.py, line 1: invalid syntax."),
        ("x = 1\nx = [\n", "{folder}/t_bad.py, line 2: '[' was never closed."),
        ("import t_not_installed.sub\n", "module 't_bad' imports 't_not_installed', which is not installed; add its package: uv add PACKAGE."),
        ("import t_bad_more\n", "module 't_bad' imports 't_bad_more', which is not installed; add its package: uv add PACKAGE."),
        ("x = 1\n1 / 0\n", "module 't_bad' cannot be imported ({folder}/t_bad.py, line 2): ZeroDivisionError: division by zero"),
        ("from mulligan import nothing_of_it\n", "module 't_bad' cannot be imported ({folder}/t_bad.py, line 1): ImportError: cannot import name 'nothing_of_it'"),
        ("import t_helper\n", "module 't_bad' cannot be imported ({folder}/t_helper.py, line 1): KeyError: 'x'"),
        ("from mulligan import Agent\na = Agent(name='a', model='gpt')\n", "{folder}/t_bad.py: agent 'a': the model is 'gpt'; it must be one of openai:NAME"),
        ("from mulligan import tool\n@tool\ndef look(x): ...\n", "{folder}/t_bad.py: tool 'look': parameter 'x' has no type; annotate it, as in `x: str`."),
        (AGENT.format(name="a") + AGENT.format(name="a").replace("\na", "\nb"), "{folder}/t_bad.py: two agents are named 'a'; give one another name."),
    ],
)  # fmt: skip
def test_a_module_that_fails_is_reported_with_file_line_and_fault(folder: Path, text: str, says: str) -> None:
    """In one sentence; the line only if there is one."""
    write(t_bad=text, t_helper="{}['x']\n")
    with pytest.raises(DeclarationError) as raised:
        load(["t_bad"])
    assert str(raised.value).startswith(says.format(folder=os.path.realpath(folder)))
    assert "\n" not in str(raised.value)


_LATER = "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nfrom dataclasses import dataclass\n"
_CHECKED = (
    "from mulligan import Agent, tool\nif TYPE_CHECKING:\n    import decimal\n    from mulligan import ToolContext\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "@tool\ndef t(ctx: ToolContext) -> str: 'T.'\n",
        "def f():\n    class L: x: int\n    @tool\n    def t(of: L) -> str: 'T.'\nf()\n",
        "@dataclass\nclass D:\n    x: decimal.Decimal\n@tool\ndef t(of: D) -> str: 'T.'\n",
        "@dataclass\nclass D:\n    x: decimal.Decimal\na = Agent(name='a', model='scripted:x', output=D)\n",
    ],
)
def test_a_type_that_is_only_there_for_type_checkers_is_named_with_the_remedy(text: str) -> None:
    write(t_later=_LATER + _CHECKED + text)
    with pytest.raises(DeclarationError, match="import it at run time, not only under `TYPE_CHECKING`"):
        load(["t_later"])


@pytest.mark.parametrize(
    "name", ["t_missing", "t_missing.agents", "t_missing/agents.py", "t_good.agents", "not a name"]
)
def test_a_missing_module_is_reported_with_the_folder_searched(folder: Path, name: str) -> None:
    write(t_good=AGENT.format(name="ann"))
    dotted = name.removesuffix(".py").replace("/", ".")
    with pytest.raises(DeclarationError) as raised:
        load([name])
    assert str(raised.value) == (
        f"there is no module {dotted!r} in {os.getcwd()} or among the installed packages; give a dotted name, such as "
        "shop.agents."
    )


def test_a_missing_import_inside_a_package_is_named_itself() -> None:
    write(t_pack__agents="from t_pack import gone\n", t_pack__more="import t_pack.gone\n")
    with pytest.raises(DeclarationError, match=r"module 't_pack\.more' imports 't_pack\.gone', which is not installed"):
        load(["t_pack.more"])
    with pytest.raises(DeclarationError, match="cannot import name 'gone' from 't_pack'"):
        load(["t_pack.agents"])


def test_two_agents_of_the_same_name_are_refused() -> None:
    """The error names both files. Names of shipped agents are taken too."""
    write(t_a=AGENT.format(name="ann"), t_b=AGENT.format(name="ann"), t_c=AGENT.format(name="assistant"))
    here = os.path.realpath(".")
    with pytest.raises(DeclarationError) as raised:
        load(["t_a", "t_b"])
    assert str(raised.value) == f"{here}/t_a.py, {here}/t_b.py: two agents are named 'ann'; give one another name."
    with pytest.raises(DeclarationError, match=r"t_c\.py.*: two agents are named 'assistant'"):
        load([*SHIPPED, "t_c"])


def test_two_scripts_of_the_same_name_are_refused() -> None:
    write(**dict.fromkeys(("t_a", "t_b"), "from mulligan import Say, Script\ns = Script('t_s', [Say('x')])\n"))
    with pytest.raises(DeclarationError, match="two scripts are named 't_s'"):
        load(["t_a", "t_b"])


def test_the_reported_line_is_in_the_users_module() -> None:
    write(t_bad="import json\njson.loads('{')\n")
    with pytest.raises(DeclarationError, match=r"t_bad\.py, line 2"):
        load(["t_bad"])


def test_a_load_error_is_one_line() -> None:
    write(t_bad="raise ValueError('first line\\nsecond line')\n")
    with pytest.raises(DeclarationError) as raised:
        load(["t_bad"])
    assert "first line" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_module_that_exits_is_reported_with_its_line() -> None:
    write(t_bad="raise SystemExit(3)\n")
    with pytest.raises(DeclarationError, match=r"t_bad\.py, line 1"):
        load(["t_bad"])


@pytest.mark.parametrize("path", ["../t_x.py", "{folder}/t_x.py"])
def test_a_missing_file_is_named_as_it_was_given(folder: Path, path: str) -> None:
    name = path.format(folder=folder)
    with pytest.raises(DeclarationError) as raised:
        load([name])
    assert name in str(raised.value)


@pytest.mark.parametrize("name", ["t_pack.agents", "..t_pack"])
def test_a_package_that_fails_on_import_is_reported(name: str) -> None:
    write(t_pack__agents=AGENT.format(name="ann"))
    Path("t_pack/__init__.py").write_text("raise ValueError('in the package')\n")
    with pytest.raises(DeclarationError, match="cannot be imported"):
        load([name])


DOUBTFUL = """
from mulligan import Agent, Say, Script, ToolContext, tool

@tool
def bare(text: str) -> str:
    return text

@tool
def documented(order: int, ctx: ToolContext) -> str:
    '''Find an order.

    Args:
        order: Its number.
        ctx: The call.
        customer: Whose it is.
    '''
    return ""

asks = Agent(name="asks", model="scripted:nobody", tools=[bare, documented])
echoes = Agent(name="echoes", model=["scripted:echo", "scripted:t_known"])
known = Script("t_known", [Say("x")])
"""


def test_probable_mistakes_are_warnings() -> None:
    """A tool without a description, a docstring that describes no parameter, a model without its script."""
    write(t_doubtful=DOUBTFUL)
    file = os.path.realpath("t_doubtful.py")
    assert load(["t_doubtful"]).warnings == (
        f"{file}: agent 'asks': its model is 'scripted:nobody', but no loaded module has a script 'nobody'; its runs will fail.",
        f"{file}: tool 'bare' has no description; write a docstring that tells the model what it does.",
        f"{file}: tool 'documented': its docstring describes 'customer', which is not a parameter; the parameters are: order, ctx.",
    )


def test_a_module_from_which_nothing_is_served_is_a_warning() -> None:
    """Agents in a list of lists are not found. Modules with workflows or activities alone are served."""
    write(
        t_hidden="from mulligan import Agent\nall_of_them = [[Agent(name='x', model='scripted:echo')]]\n",
        t_shop=ACTIVITY.format(name="", function="pack"),
        t_flow=WORKFLOW.format(name="Own"),
    )
    assert load(["t_shop", "t_flow"]).warnings == ()
    assert load(["t_hidden", "t_shop"]).warnings == (
        f"{os.path.realpath('t_hidden.py')}: the module has no agent, tool, workflow or activity; declare them at its top "
        "level, as in `support = Agent(…)`.",
    )


def test_a_file_that_an_installed_module_hides_is_not_replaced_by_that_module() -> None:
    """By its dotted name the installed module is meant, by its path the file."""
    write(colorsys=AGENT.format(name="a"), t_mine=AGENT.format(name="b"))
    assert list(load(["t_mine.py", "./t_mine.py", os.path.abspath("t_mine.py")]).registry.agents) == ["b"]
    with pytest.raises(
        DeclarationError, match=r"the file colorsys\.py is hidden by .*colorsys\.py: .* rename the file\."
    ):
        load(["colorsys.py"])


def test_an_async_generator_is_refused_as_a_tool() -> None:
    write(t_bad="from mulligan import tool\n\n@tool\nasync def rows(limit: int):\n    '''List.'''\n    yield limit\n")
    with pytest.raises(DeclarationError, match=r"t_bad\.py: tool 'rows': it is an async generator function"):
        load(["t_bad"])


def test_the_built_in_scripts_are_those_of_the_scripted_model() -> None:
    assert set(Scripted({})._scripts) == BUILT_IN_SCRIPTS
