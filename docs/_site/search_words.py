"""The words that people search for where the page says it in others: each page's, for the index and the search.

A phrase is an entry of the index, found as it is; its words are keywords of the page, so that they are found in any order.
"""

from collections.abc import Mapping
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

WORDS: Mapping[str, str] = {
    "adopt": "migrate an agent, openai-agents, pydantic-ai",
    "ag-ui": "copilotkit, generative ui",
    "agent-files": "prompt management, prompt versions, yaml agent",
    "ai-sdk": "vercel, useChat, next.js, nextjs, react chat",
    "anthropic-google": "claude, gemini",
    "approval-rules": "auto approve, reminder, escalate, who may approve",
    "background": "webhook, long answers, deep research",
    "batch": "cheaper answers, half price, batch api",
    "budgets": "spending limit, quota, cost limit of a tenant",
    "cases": "regression test, record and replay a run, golden test",
    "clearing": "context window, context editing",
    "clients": "sdk, typescript client, javascript client",
    "code-mode": "programmatic tool calling, scripts, sandbox python",
    "coding-agents": "codex, claude code, cursor, opencode",
    "compaction": "summarize, context window too long, context length exceeded",
    "connecting": "tls, mtls, api key, temporal cloud, namespace",
    "console": "web ui, dashboard, admin page",
    "content": "images, pdf, files, audio, multimodal, vision, attachments",
    "context": "prompt that was sent, what the model saw, debug a prompt",
    "costs": "price, token usage, how much does a run cost",
    "deferred-tools": "webhook, callback, long running tool, external job, wait for a webhook",
    "deploying": "docker, kubernetes, helm, image, production",
    "encryption": "codec, encrypt payloads, personal data, kms",
    "endpoints": "azure, openrouter, vllm, base url, proxy, litellm, gateway",
    "events": "event stream, sse, subscribe",
    "existing-worker": "temporal plugin, own temporal application",
    "fallback": "second model, outage of a provider, retry another model",
    "fork": "replay from a step, time travel, branch, edit history of a run",
    "guardrails": "moderation, validate input, output validator, pii",
    "handoffs": "multi agent, transfer, triage",
    "hostile-content": "prompt injection, jailbreak, untrusted content, lethal trifecta",
    "http-api": "rest, start a run over http, idempotency",
    "isolated-tools": "sandbox, subprocess, tool process, memory limit of a tool",
    "local-models": "ollama, llama.cpp, lm studio, self hosted model",
    "mcp": "model context protocol, mcp server tools",
    "mcp-production": "oauth of mcp, npx in an image",
    "messages": "stop, stop button, stop a run, cancel a run, cancel, abort, interrupt, steer, send a message",
    "models": "openai, gpt, choose a model, provider",
    "not-built-in": "memory, rag, vector database, embeddings, knowledge base, retrieval, fastapi, flask, django, gdpr",
    "once": "idempotent, exactly once, duplicate call, idempotency key",
    "operating": "logs, monitoring, prometheus, grafana, alerts, observability",
    "options": "timeout, max_steps, parallel tool calls, settings of an agent",
    "own-provider": "custom model, custom provider",
    "people": "human in the loop, hitl, approval, approve, ask the user, confirm",
    "playbooks": "outage, incident, temporal is down, runbook",
    "rate-limits": "429, throttling, concurrency",
    "recovery": "malformed json, invalid tool call, retry, hallucinated tool, self-correction",
    "resume": "conversation, continue a chat, chat history, session, thread",
    "run-time-tools": "dynamic tools, tools from json schema, openapi tools",
    "scaling": "autoscaling, keda, more workers, replicas, memory",
    "schedules": "cron, recurring, every day",
    "scores": "eval, evaluate, llm judge, grading",
    "security": "secrets, hardening, threat model",
    "serving": "server, http, backend",
    "serving-callers": "permissions, roles, authorization",
    "serving-mcp": "agent as mcp server",
    "serving-openai": "openai compatible, chat completions, responses api, open webui",
    "serving-sign-in": "login, oidc, oauth, jwt, authentication, sso",
    "settings": "environment variables, configuration",
    "skills": "SKILL.md, agent skills",
    "structured-output": "json output, pydantic output, response format, typed output",
    "sub-agents": "delegate, agent as a tool, orchestrator, subagent",
    "tenants": "multi tenant, tenant isolation, customers data",
    "testing": "unit test, mock model, fake model, pytest",
    "tool-search": "many tools, too many tools, lazy tools",
    "tools": "function calling, tool definition, tool error",
    "traces": "jaeger, opentelemetry, otel, spans, langfuse, logfire, tracing",
    "troubleshooting": "error, error message, does not start, nothing happens, stuck, faq",
    "tutorial": "getting started, quickstart, install, first agent, hello world",
    "undo": "compensation, saga, roll back, rollback",
    "upgrading": "breaking changes, versions, deprecation",
    "versions": "deploy a new version, worker versioning, rolling deploy",
    "waiting": "sleep, timer, wait for days",
    "what-if": "try another prompt, compare models, a/b test",
    "which-feature": "overview, features, comparison of features",
    "words": "glossary, terms, architecture",
    "workflows": "own workflow, child workflow, durable agent in a workflow",
}  # fmt: skip
"""Of a page, phrases in any number, with commas between them."""


class AddWords(SphinxTransform):
    """Adds them to a page: keywords, and entries of the index that lead to its title. The lines of its text stay."""

    default_priority = 400
    """Before the entries of the index are collected."""

    def apply(self, **_: Any) -> None:
        """Before the index is made."""
        title = next(iter(self.document.findall(nodes.section)), None)
        phrases = WORDS.get(self.env.docname, "")
        if title is None or not phrases:
            return
        entries = [("single", phrase, title["ids"][0], "main", None) for phrase in phrases.split(", ")]
        title.insert(
            1, [addnodes.index(entries=entries), nodes.meta(name="keywords", content=phrases.replace(",", ""))]
        )
