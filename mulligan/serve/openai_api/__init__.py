"""`/v1`: OpenAI's Responses, Chat Completions and Models. An agent is a model; a response is a run (docs/serving.md).

openai_protocol.py joins the routes, and has OpenAI's form of errors. A request is read by request_fields.py and
input_items.py; the events of a run become OpenAI's in response_events.py (numbered by sequence.py) and chat_text.py. Both
translate the reading of a run (mulligan/run_view).
"""
