"""Real servers of models as they are: what each refuses, how it says errors, how it cuts its streams, and who has seen it.

`members.py` has them all. A server is a file, whose `MEMBER` says it; the rules of OpenAI's, Anthropic's and Google's APIs are
the files `…_rules.py`.
"""
