// A program that uses /v1 by the AI SDK's OpenAI provider: URL TOKEN MODE PROMPT [AGENT]. It approves all calls.
// It prints a line of JSON for each answer: {text, finish, parts, results}. `results`: what it has as the results of calls.
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, streamText } from 'ai';

const [url, token, mode, prompt, agent = 'seller'] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: token });
const tools = { mcp: openai.tools.mcp({ serverLabel: 'mulligan', serverUrl: url, requireApproval: 'always' }) };
const options = { model: openai.responses(agent), tools, system: 'Be brief.', temperature: 0.1, maxRetries: 0 };

async function ask(messages) {
  if (mode === 'plain') return generateText({ ...options, messages });
  const result = streamText({ ...options, messages });
  await result.consumeStream();
  return { text: await result.text, content: await result.content, finishReason: await result.finishReason, response: await result.response };
}

const messages = [{ role: 'user', content: prompt }];
for (const _ of [1, 2, 3]) {
  const { text, content, finishReason, response } = await ask(messages);
  const results = content.filter((part) => part.type === 'tool-result').map((part) => [part.toolName, part.output.output]);
  console.log(JSON.stringify({ text, finish: finishReason, parts: content.map((part) => part.type), results }));
  messages.push(...response.messages);
  const approvals = content
    .filter((part) => part.type === 'tool-approval-request')
    .map((part) => ({ type: 'tool-approval-response', approvalId: part.approvalId, approved: true, providerExecuted: true }));
  messages.push(approvals.length ? { role: 'tool', content: approvals } : { role: 'user', content: 'Thanks.' });
}
