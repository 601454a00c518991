"""How endpoints refuse a part of a request that it can do without: by the words of their messages.

Their errors have no code for it. Anthropic's have the type `invalid_request_error` for every faulty request, Google's the
status INVALID_ARGUMENT; OpenAI names the field in `param` for some refusals and models only, and compatible servers (vLLM,
llama.cpp, ollama, OpenRouter, LiteLLM) answer 400, 422 or 500 with a text of their own. So each pattern is used with a
status, and only where the request has the part in question. Where a text is not recognized, the run has the endpoint's own
error; where one is recognized wrongly, one more request is sent, without that part.
"""

from __future__ import annotations

import re

STREAMING = re.compile(r"\bstream", re.IGNORECASE)
""""Unsupported value: 'stream' does not support true with this model.", and that the organisation must be verified to
stream the model."""
TOOLS = re.compile(r"\btool|\bfunction", re.IGNORECASE)
""""… does not support tools" (ollama), "tool choice requires --enable-auto-tool-choice" (vLLM)."""
REASONING = re.compile(r"encrypted.content|\binclude\b", re.IGNORECASE)
""""Encrypted content is not supported with this model." (pydantic/pydantic-ai#2865), "The encrypted content for item rs_…
could not be verified." (openai/codex#17541), "Unknown parameter: 'include'."."""
CONTENT = re.compile(r"image|audio|document|\bpdf\b|inline.?data|mime.?type|media.?type", re.IGNORECASE)
""""Could not process image" (Anthropic), "Unable to process input image" (Google)."""
CONTENT_OF_KIND = {
    "image": re.compile(r"image|vision|multi-?modal|content type|content part|content must be", re.IGNORECASE),
    "audio": re.compile(r"audio|multi-?modal|content type|content part|content must be", re.IGNORECASE),
    "file": re.compile(
        r"\bfiles?\b|input_file|file_data|\bpdf|document|multi-?modal|content (type|part|must be)", re.IGNORECASE
    ),
}
"""As CONTENT, for the kinds of content in OpenAI's APIs."""
UNSUPPORTED = re.compile(
    r"not support|unsupported|does(n't| not) (accept|take)|only supported by|not a multi-?modal|no endpoints found|missing"
    r" data required|mmproj|must be a string",
    re.IGNORECASE,
)
"""All content of a kind: "image input is not supported - hint: … mmproj" (llama.cpp, with 500), "… is not a multimodal
model" (vLLM), "No endpoints found that support image input" (OpenRouter), "image_url is only supported by certain models"
(OpenAI)."""
ANTHROPIC_LIMIT = re.compile(r"max_tokens: \d+ > (\d+)")
""""max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens …"."""
ANTHROPIC_THINKING = re.compile(r"\bthinking\b|\bsignature\b", re.IGNORECASE)
"""Thinking of another model: "Invalid `signature` in `thinking` block"."""
ANTHROPIC_FORMAT = re.compile(r"output_config|output format|structured output|\bschema\b", re.IGNORECASE)
""""… does not support output format", "Schema is too complex"."""
ANTHROPIC_SAMPLING = re.compile(r"\b(?:temperature|top_p|top_k)\b")
DEFERRED_TOOLS = re.compile(r"defer.?loading|tool.?reference|tool.?search|deferred", re.IGNORECASE)
"""Tools that are deferred: "… does not support tool reference blocks", "Invalid value: 'tool_search'"."""
GOOGLE_SIGNATURE = re.compile(r"thought.?signature", re.IGNORECASE)
GOOGLE_FORMAT = re.compile(r"response.?mime.?type|response.?(?:json.?)?schema|json mode", re.IGNORECASE)
""""Function calling with a response mime type: 'application/json' is unsupported"."""
PROPERTIES = re.compile(r"property (keys?|names?)\b.{0,80}\b(match|pattern|character)", re.IGNORECASE)
""""Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'" (Anthropic, and gateways before it)."""
IDS = re.compile(
    r"(call_id|tool_calls\[\d+\]\.id|input\[\d+\]\.id|tool_use(\.id|_id|` ids)).{0,80}"
    r"(too long|maximum length|pattern|match)",
    re.IGNORECASE,
)
"""Ids of calls: "Invalid 'messages[2].tool_call_id': string too long. Expected a string with maximum length 40" (OpenAI,
where a gateway's other models make longer ones; 'input[2].call_id' in the Responses API, and 'input[2].id', which LiteLLM
makes of it), "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'" (Anthropic)."""
