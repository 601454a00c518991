"""An agent of pydantic-ai as Mulligan's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pydantic_ai as sdk
from pydantic import ValidationError
from pydantic_ai.messages import BinaryContent, ImageUrl, ToolReturn
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset, ToolsetTool
from pydantic_ai.usage import RunUsage

from mulligan.adopt import pydantic_ai_privates as privates
from mulligan.adopt.terms import Terms, again, called, failing_on, guardrails, mcp_server, refuse, warn
from mulligan.agent import Agent
from mulligan.content import Image
from mulligan.output import ProviderStrategy, ToolStrategy
from mulligan.provider_tool import ProviderTool
from mulligan.run_input import RunInput
from mulligan.tool import Tool, ToolContext, ToolError

_NATIVE: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "WebSearchTool": {
        "openai": {"type": "web_search"},
        "anthropic": {"type": "web_search_20250305", "name": "web_search"},
        "google": {"google_search": {}},
    },
    "CodeExecutionTool": {
        "openai": {"type": "code_interpreter", "container": {"type": "auto"}},
        "google": {"code_execution": {}},
    },
}
"""Native tools without options, as the APIs of the providers take them."""
_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "stop_sequences",
    "logit_bias",
)
_MAX_TOKENS = {"openai": "max_output_tokens", "google": "max_output_tokens"}
_CARRIED = (*_SAME, "max_tokens", "parallel_tool_calls", "timeout", "extra_body", "openai_reasoning_effort")
"""The settings that are carried over."""


def adopted(agent: sdk.Agent[Any, Any], terms: Terms) -> Agent[Any]:
    """The agent as Mulligan's.

    Raises:
        DeclarationError: a part of it cannot be carried over.
    """
    name = agent.name or "agent"
    model = terms.model or privates.model_of(agent)
    provider = (model or "").partition(":")[0]
    refuse(name, _reasons(agent, model, provider))
    _warn(agent, name)
    assert model is not None
    functions, outputs = _Functions(agent, terms, provider), privates.Outputs(agent)
    settings: Any = agent.model_settings or {}
    schemas = outputs.schemas() if outputs.mode != "text" else []
    output: Any = None
    if schemas:
        output = (
            ToolStrategy(schemas, or_text=outputs.or_text) if outputs.mode == "tool" else ProviderStrategy(schemas[0])
        )
    has_functions = outputs.mode != "text" or outputs.validators() or functions.reads_text
    others: dict[str, Any] = {}
    if isinstance(settings.get("timeout"), int | float):
        others["model_timeout"] = settings["timeout"]
    return Agent(
        name=name,
        description=str(agent.description or ""),
        model=model,
        instructions=functions.instructions(),
        tools=functions.tools(),
        mcp=[mcp_server(options) for each in agent.toolsets if (options := privates.mcp_options(each))],
        output=output,
        features=guardrails(
            name,
            validators=functions.validators(outputs) if has_functions else [],
            retries=privates.retries(agent)[1],
        ),
        parallel_tool_calls=settings.get("parallel_tool_calls") is not False,
        model_settings=_settings(settings, provider),
        **others,
    )


def _reasons(agent: sdk.Agent[Any, Any], model: str | None, provider: str) -> Iterator[str]:
    """What of the agent cannot be carried over, as sentences."""
    if not agent.name:
        yield "It has no name: give it one."
    if model is None:
        named = getattr(agent.model, "model_name", agent.model)
        yield f"Its model {named!r} has no name in Mulligan: give adopt(…, model=…)."
    if callable(agent.model_settings):
        yield "Its model_settings are a function: give a dict."
    for capability in privates.other_capabilities(agent):
        yield f"Its capability {capability} works within pydantic-ai's own loop: leave it out."
    for tool in privates.native_tools(agent):
        kind = type(tool).__name__
        if _native(tool, provider) is None:
            yield f"Its native tool {kind} is not one that adopt knows for {provider!r}: use a ProviderTool of Mulligan's."
    if privates.Outputs(agent).may_be_image:
        yield "Its output_type allows images: Mulligan's agents answer in text, or with objects."
    for toolset in agent.toolsets:
        if isinstance(toolset, FunctionToolset):
            for declared in toolset.tools.values():
                if declared.args_validator is not None:
                    yield f"The args_validator of its tool {declared.name!r} is not called: check in the function."


def _warn(agent: sdk.Agent[Any, Any], name: str) -> None:
    outputs = privates.Outputs(agent)
    if outputs.mode == "prompted":
        warn(name, "its PromptedOutput is requested by the provider's own format, as NativeOutput is.")
    if outputs.may_defer:
        warn(name, "it never ends with DeferredToolRequests; a call that needs approval waits for a person.")
    settings: Any = agent.model_settings or {}
    if left_out := sorted({*settings} - {*_CARRIED}):
        warn(
            name, f"its model_settings {', '.join(left_out)} are left out; Mulligan's model_settings are the API's own."
        )


def _settings(settings: Mapping[str, Any], provider: str) -> dict[str, Any]:
    """The settings of model calls, by the names of the API."""
    sent = {each: settings[each] for each in _SAME if settings.get(each) is not None}
    if settings.get("max_tokens") is not None:
        sent[_MAX_TOKENS.get(provider, "max_tokens")] = settings["max_tokens"]
    if effort := settings.get("openai_reasoning_effort"):
        sent |= {"reasoning": {"effort": effort}} if provider == "openai" else {"reasoning_effort": effort}
    extra = settings.get("extra_body")
    return sent | dict(extra if isinstance(extra, Mapping) else {})


def _native(tool: Any, provider: str) -> ProviderTool | None:
    """A native tool as one of the provider's; None where it has options, or is another one."""
    known = _NATIVE.get(type(tool).__name__, {}).get(provider)
    is_plain = known is not None and tool == type(tool)()
    return ProviderTool(provider, known) if is_plain and known is not None else None


class _Functions:
    """The functions of an agent, as Mulligan calls them."""

    def __init__(self, agent: sdk.Agent[Any, Any], terms: Terms, provider: str) -> None:
        self._agent, self._terms = agent, terms
        self._toolsets = [each for each in agent.toolsets if privates.mcp_options(each) is None]
        self._toolset: CombinedToolset[Any] = CombinedToolset(self._toolsets)
        self._native = [each for tool in privates.native_tools(agent) if (each := _native(tool, provider)) is not None]

    @property
    def reads_text(self) -> bool:
        """Whether a function of the agent's turns the text of an answer into its output."""
        return self._agent.output_type is not str

    def instructions(self) -> Any:
        """The instructions: a text, or a function where one of the agent's returns a part of them."""
        prompts = privates.prompts(self._agent)
        if all(isinstance(each, str) for each in prompts):
            return "\n\n".join(filter(None, (each.strip() for each in prompts)))

        async def instructions(run_input: RunInput, ctx: ToolContext) -> str:
            context = await self._context(ctx, prompt=run_input.prompt if isinstance(run_input.prompt, str) else None)
            texts = [each if isinstance(each, str) else await self._prompt(each, context) for each in prompts]
            return "\n\n".join(filter(None, (each.strip() for each in texts)))

        return instructions

    async def _prompt(self, function: Callable[..., Any], context: sdk.RunContext[Any]) -> str:
        given = (context,) if privates.takes_context(function) else ()
        return privates.text_of(await called(function, *given))

    def tools(self) -> Any:
        """The tools; a function where it depends on the run which there are."""
        plain = [each for each in self._toolsets if isinstance(each, FunctionToolset)]
        declared = [tool for toolset in plain for tool in toolset.tools.values()]
        if len(plain) == len(self._toolsets) and not any(tool.prepare for tool in declared):
            # Nothing of it waits for anything; but an event loop may be running already.
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(asyncio.run, self._listed(self._bare_context(None))).result()

        async def tools_of_run(run_input: RunInput, ctx: ToolContext) -> list[Tool | ProviderTool]:
            del run_input
            return await self._listed(await self._context(ctx))

        return tools_of_run

    def validators(self, outputs: privates.Outputs) -> list[Callable[..., Any]]:
        """What makes an answer the object that the agent's runs return: its types and functions, then its validators."""

        async def output(answer: Any, ctx: ToolContext) -> Any:
            return await self._retried(outputs.read(ctx.pinned.get("output_type"), answer, await self._context(ctx)))

        functions: list[Callable[..., Any]] = [output] if outputs.mode != "text" or self.reads_text else []
        return [*functions, *(self._validator(name, validate) for name, validate in outputs.validators())]

    def _validator(self, name: str, validate: Callable[..., Any]) -> Callable[..., Any]:
        async def validated(value: Any, ctx: ToolContext) -> Any:
            return await self._retried(validate(value, await self._context(ctx)))

        validated.__name__ = name
        return validated

    async def _retried(self, work: Any) -> Any:
        try:
            return await work
        except sdk.ModelRetry as retry:
            raise again(retry.message) from retry

    def _bare_context(self, deps: Any, **options: Any) -> sdk.RunContext[Any]:
        tool_retries = privates.retries(self._agent)[0]
        model: Any = self._agent.model
        return sdk.RunContext(
            deps=deps, model=model, usage=RunUsage(), agent=self._agent, max_retries=tool_retries, **options
        )

    async def _context(self, ctx: ToolContext, **options: Any) -> sdk.RunContext[Any]:
        deps = await self._terms.context_of(ctx)
        return self._bare_context(deps, run_id=ctx.workflow_id, run_step=ctx.step, **options)

    async def _listed(self, context: sdk.RunContext[Any]) -> list[Tool | ProviderTool]:
        async with self._of_run(context) as toolset:
            listed = await toolset.get_tools(context)
        return [*map(self._tool, listed.values()), *self._native]

    @asynccontextmanager
    async def _of_run(self, context: sdk.RunContext[Any]) -> AsyncIterator[AbstractToolset[Any]]:
        """The toolsets as they are for a run, for one call: a toolset may depend on the context."""
        toolset = await self._toolset.for_run(context)
        async with toolset:
            yield await toolset.for_run_step(context)

    def _tool(self, listed: ToolsetTool[Any]) -> Tool:
        definition = listed.tool_def
        if definition.kind == "external":
            refuse(self._agent.name or "", [f"Its tool {definition.name!r} is run elsewhere: use a deferred tool."])
        seconds = definition.timeout

        async def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
            context = await self._context(
                ctx,
                tool_call_id=ctx.call_id,
                tool_name=definition.name,
                tool_call_approved=definition.kind == "unapproved",
            )
            async with self._of_run(context) as toolset:
                tool = (await toolset.get_tools(context))[definition.name]
                try:
                    valid = tool.args_validator.validate_json(json.dumps(arguments), context=context.validation_context)
                    return _result(await toolset.call_tool(definition.name, valid, context, tool))
                except sdk.ModelRetry as retry:
                    raise ToolError(privates.retry_text(retry.message)) from retry
                except ValidationError as error:
                    text = privates.retry_text(error.errors(include_url=False, include_context=False))
                    raise ToolError(text) from error

        return Tool.from_schema(
            name=definition.name,
            description=definition.description or "",
            schema=definition.parameters_json_schema,
            call=call,
            strict=privates.is_strict(definition),
            needs_approval=definition.kind == "unapproved",
            timeout=seconds,
            on_demand=definition.defer_loading,
            # Another exception of a tool ends a run of pydantic-ai.
            handle_errors=failing_on("tool_exception"),
        )


def _result(returned: Any) -> Any:
    """A tool's result; images of theirs as Mulligan's."""
    value = returned.return_value if isinstance(returned, ToolReturn) else returned
    if isinstance(value, ImageUrl):
        return Image(url=value.url)
    if isinstance(value, BinaryContent) and value.is_image:
        return Image(data=value.data, media_type=value.media_type)
    return value
