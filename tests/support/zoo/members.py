"""All servers of the zoo that speak Chat Completions. Anthropic's and Google's own APIs are in the scripted server."""

from __future__ import annotations

from importlib import import_module

from tests.support.zoo.member import Member

NAMES = [
    "openai",
    "mistral",
    "groq",
    "kimi",
    "glm",
    "deepseek",
    "minimax",
    "vllm",
    "sglang",
    "llama_cpp",
    "ollama",
    "lm_studio",
    "openrouter",
    "litellm_claude",
    "litellm_gemini",
    "gemini_compatible",
    "foundry_local",
    "bedrock_gateway",
]
MEMBERS: list[Member] = [import_module(f"tests.support.zoo.{name}").MEMBER for name in NAMES]
