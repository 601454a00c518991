// npm's `openai` and `ai`, with the repetitions that they make by themselves. Prints what each request came to as JSON.
import OpenAI from "openai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [url, token, what, prompt] = process.argv.slice(2);
const baseURL = url + "/v1";
const model = what === "failed" ? "strict_seller" : "seller";
const openai = new OpenAI({ baseURL, apiKey: token, maxRetries: 2, timeout: what === "slow" ? 1000 : 600000 });
const agents = createOpenAICompatible({ name: "mulligan", baseURL, apiKey: token });
const responses = createOpenAI({ baseURL, apiKey: token });
const headers = { "Idempotency-Key": crypto.randomUUID() };
const messages = [{ role: "user", content: prompt }];
const ways = {
  response: async () => (await openai.responses.create({ model, input: prompt })).status,
  chat: async () => (await openai.chat.completions.create({ model, messages })).choices[0].message.content,
  ai: async () => (await generateText({ model: agents(model), prompt, maxRetries: 2 })).text,
  ai_key: async () => (await generateText({ model: agents(model), prompt, headers })).text,
  ai_stream: async () => await streamText({ model: agents(model), prompt, onError: () => {} }).text,
  ai_openai: async () => (await generateText({ model: responses(model), prompt })).text,
  ai_openai_key: async () => (await generateText({ model: responses(model), prompt, headers })).text,
};
const way = process.argv[6];
try {
  console.log(JSON.stringify([await ways[way]()]));
} catch (error) {
  console.log(JSON.stringify([error.name, error.status ?? error.statusCode ?? null]));
}
