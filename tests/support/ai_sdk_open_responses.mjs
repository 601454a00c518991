// A program that uses /v1 by the AI SDK's provider for Open Responses: URL TOKEN MODE PROMPT. It shows the run's calls.
// It prints a line of JSON for each of two answers: {text, finish, parts, results}.
import { createOpenResponses } from '@ai-sdk/open-responses';
import { generateText, streamText } from 'ai';

const [url, token, mode, prompt] = process.argv.slice(2);
const calls = {
  id: 'mulligan.tool_call',
  itemTypes: ['mulligan:tool_call'],
  decodeItem: ({ item: { id, name, arguments: input, output, error } }) => [
    { type: 'tool-call', toolCallId: id, toolName: name, input, providerExecuted: true, dynamic: true },
    { type: 'tool-result', toolCallId: id, toolName: name, result: output ?? error.message, dynamic: true },
  ],
};
const mulligan = createOpenResponses({
  name: 'mulligan',
  url: `${url}/v1/responses`,
  apiKey: token,
  headers: { 'OpenResponses-Version': 'latest' },
  experimental_extensions: [calls],
});
const options = { model: mulligan('seller'), maxRetries: 0 };

async function ask(messages) {
  if (mode === 'plain') return generateText({ ...options, messages });
  const result = streamText({ ...options, messages });
  await result.consumeStream();
  return { text: await result.text, content: await result.content, finishReason: await result.finishReason, response: await result.response };
}

const messages = [{ role: 'user', content: prompt }];
for (const _ of [1, 2]) {
  const { text, content, finishReason, response } = await ask(messages);
  const parts = content.map((part) => part.type);
  const results = content.filter((part) => part.type === 'tool-result').map((part) => [part.toolName, part.output]);
  console.log(JSON.stringify({ text, finish: finishReason, parts, results }));
  messages.push(...response.messages, { role: 'user', content: 'Thanks.' });
}
