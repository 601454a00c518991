"""The table of event logs: what each kind of run looks like to the doors of `mulligan serve`.

tests/unit/test_event_logs.py compares most of them with what the engine stores, and has what each door makes of each in
tests/unit/door_frames/.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

from mulligan.serve.turn_stream import WaitingCall
from tests.support.content_files import PDF, png
from tests.support.run_log import RunLog, call

FIND_7, FIND_8 = call("c1", "find", '{"order": 7}'), call("c2", "find", '{"order": 8}')
REFUND = call("c1", "refund", '{"order": 7}')
ASK = call("c2", "ask_person", '{"question": "Which?"}')
REPORT = call("c1", "order_report", '{"name": "May"}')
HELPER = call("d1", "helper", '{"prompt": "Look."}')
TRANSFER = call("t1", "transfer_to_teller", "{}")
RECEIPT = call("o1", "Receipt", '{"order": 7, "paid": true}')
UNKNOWN = "There is no tool `fnd`."
HOSTILE = 'Grüße, 世界 🎉 \u202e</script>\x00 ```{"a": 1}``` data: [DONE]\n\nevent: error\r\n\r\n'
"""Other scripts, control characters, markup, and what looks like the end of a frame."""
LONG = "It was a dark and stormy night. " * 3_000
LOGS: dict[str, Callable[[], RunLog]] = {}
"""The logs by their names. A log that is not ended waits for a person, or is under way."""


def _named(make: Callable[[], RunLog]) -> Callable[[], RunLog]:
    LOGS[make.__name__.strip("_")] = make
    return make


def _text(log: RunLog, text: str = "Done.") -> RunLog:
    return log.write(text).answer(text)


@_named
def plain_answer() -> RunLog:
    """The text comes in pieces, the last one with the answer."""
    return RunLog().begin().write("Hel", "lo ").answer("Hello there.").end("Hello there.")


@_named
def answer_that_nobody_saw_live() -> RunLog:
    """Which is also that of a model whose thoughts were all that it wrote first: they are in no event."""
    return RunLog().begin().answer("Hello.").end("Hello.")


@_named
def two_calls_side_by_side() -> RunLog:
    """The second is settled first; the first has reported its progress."""
    log = RunLog().begin().write("I look.").write_call(FIND_7, '{"ord', 'er": 7}').write_call(FIND_8, index=1)
    log.answer("I look.", FIND_7, FIND_8).start(FIND_7, {"order": 7}).start(FIND_8, {"order": 8})
    log.report(FIND_7, "Half.").settle(FIND_8, "order 8").settle(FIND_7, "order 7").ask_model()
    return _text(log, "Both are there.").end("Both are there.")


@_named
def invalid_input_is_recovered() -> RunLog:
    """Repaired input runs; what cannot be repaired is told the model, whose next call is right."""
    loose, wrong = call("c1", "find", '{"order": "7",}'), call("c2", "find", '{"order": "x"}')
    right = call("c3", "find", '{"order": 8}')
    repairs = [
        {"by": "json:trailing_commas", "before": '{"order": "7",}', "after": {"order": "7"}},
        {"by": "schema:integer", "before": {"order": "7"}, "after": {"order": 7}},
    ]
    log = RunLog().begin().answer("", loose, wrong)
    log.store("tool_call_repaired", step=1, call_id="c1", name="find", repairs=repairs)
    log.start(loose, {"order": 7}).settle(wrong, '"order": must be an integer.', "invalid_arguments")
    log.settle(loose, "order 7").ask_model().answer("", right).start(right, {"order": 8}).settle(right, "order 8")
    return log.ask_model().answer("Done.").end("Done.")


@_named
def unknown_tool_and_a_tool_that_fails() -> RunLog:
    unknown, fails = call("c1", "fnd", "{}"), call("c2", "find", '{"order": 0}')
    log = RunLog().begin().answer("", unknown, fails).start(fails, {"order": 0})
    log.settle(unknown, UNKNOWN, "unknown_tool").settle(fails, "There is no order 0.", "tool_error")
    return log.ask_model().answer("Sorry.").end("Sorry.")


def _asks_for_approval() -> RunLog:
    """The arguments of a call that may wait are shown live to nobody but readers of our own events."""
    log = RunLog().begin().write_call(REFUND, may_wait=True)
    return log.answer("", REFUND).wait(REFUND, {"order": 7}, 'refund {"order": 7}').reply("c1")


@_named
def approval_that_waits() -> RunLog:
    log = _asks_for_approval()
    log.replies.clear()
    return log


@_named
def approval_is_given() -> RunLog:
    log = _asks_for_approval().decide(REFUND, "approve", by="ada").start(REFUND, {"order": 7})
    return _text(log.settle(REFUND, "refunded 7").ask_model()).end("Done.")


@_named
def approval_is_denied() -> RunLog:
    text = "`refund` was not run: a person denied it: Too much."
    log = _asks_for_approval().decide(REFUND, "deny", reason="Too much.").settle(REFUND, text, "denied")
    return _text(log.ask_model()).end("Done.")


@_named
def approval_is_given_with_other_arguments() -> RunLog:
    log = _asks_for_approval().decide(REFUND, "approve", edited=True).start(REFUND, {"order": 8})
    return _text(log.settle(REFUND, "refunded 8").ask_model()).end("Done.")


@_named
def question_is_answered() -> RunLog:
    log = RunLog().begin().answer("", ASK).wait(ASK, {"question": "Which?"}, "Which?", "question").reply("c2")
    return _text(log.decide(ASK, "answer").settle(ASK, "Both.").ask_model()).end("Done.")


@_named
def approval_and_question_of_one_step() -> RunLog:
    """Both are asked at the end of one stream, and a call that runs goes on."""
    runs = call("c3", "find", '{"order": 8}')
    log = RunLog().begin().answer("", REFUND, ASK, runs).wait(REFUND, {"order": 7}, 'refund {"order": 7}')
    log.wait(ASK, {"question": "Which?"}, "Which?", "question").start(runs, {"order": 8}).settle(runs, "order 8")
    log.reply("c1", "c2").decide(REFUND, "approve").start(REFUND, {"order": 7}).decide(ASK, "answer")
    log.settle(ASK, "Both.").settle(REFUND, "refunded 7")
    return _text(log.ask_model()).end("Done.")


@_named
def deferred_call() -> RunLog:
    """Its tool has returned; its result comes from elsewhere."""
    deferred = {"kind": "callback", "started": "job 7", "since": "2026-11-25T12:00:00+00:00"}
    log = RunLog().begin().answer("", REPORT).start(REPORT, {"name": "May"})
    log.store("tool_call_deferred", step=1, call_id="c1", name="order_report", deferred=deferred)
    return _text(log.settle(REPORT, '{"rows": 3}').ask_model()).end("Done.")


def _helper() -> RunLog:
    return RunLog("run-1/d1", "helper").begin()


@_named
def sub_agent() -> RunLog:
    """Its events are those of a run below: no door but our own events has its text."""
    below = _helper().write_call(FIND_7).answer("", FIND_7).start(FIND_7, {"order": 7}).settle(FIND_7, "order 7")
    _text(below.ask_model(), "Found.").end("Found.")
    log = RunLog().begin().write_call(HELPER).answer("", HELPER).start(HELPER, {"prompt": "Look."})
    return _text(log.run_below(HELPER, below, "Found.").ask_model()).end("Done.")


def _helper_that_asks() -> RunLog:
    return _helper().answer("", REFUND).wait(REFUND, {"order": 7}, 'refund {"order": 7}')


@_named
def sub_agent_that_asks_for_approval() -> RunLog:
    """The call of the run itself waits for it."""
    below = _helper_that_asks().decide(REFUND, "approve").start(REFUND, {"order": 7}).settle(REFUND, "refunded 7")
    _text(below.ask_model(), "Refunded.").end("Refunded.")
    log = RunLog().begin().answer("", HELPER).start(HELPER, {"prompt": "Look."})
    log.reply(WaitingCall("c1", "run-1/d1"))
    return _text(log.run_below(HELPER, below, "Refunded.").ask_model()).end("Done.")


@_named
def sub_agent_that_waits() -> RunLog:
    log = RunLog().begin().answer("", HELPER).start(HELPER, {"prompt": "Look."})
    log.below["d1"] = _helper_that_asks()
    return log


@_named
def handoff() -> RunLog:
    log = RunLog().begin().write("I find somebody.").answer("I find somebody.", TRANSFER).start(TRANSFER, {})
    agents = {"from_agent": "shop", "agent": "teller", "model": "openai:b"}
    log.settle(TRANSFER, "The conversation was handed over: you are the agent `teller` now. Go on in its place.")
    log.store("handed_over", step=1, call_id="t1", name="transfer_to_teller", **agents).ask_model("openai:b")
    return _text(log, "It is 9 EUR.").end("It is 9 EUR.")


@_named
def citations() -> RunLog:
    """One source twice, and a document that has no address."""
    cited = [
        {"url": "https://a", "title": "Otters", "text": "They swim.", "start": 6, "end": 18},
        {"url": "https://a", "title": "Otters", "start": 0, "end": 5},
        {"url": "", "title": "notes.txt"},
    ]
    log = RunLog().begin().answer("I look.", FIND_7).start(FIND_7, {"order": 7}).settle(FIND_7, "order 7").ask_model()
    return log.write("Look: ").answer("Look: Otters swim.", citations=cited).end("Look: Otters swim.")


@_named
def made_files() -> RunLog:
    """An image whose bytes are here beside a call, then one that is only referred to, a PDF, and one that was not kept."""
    here = {"type": "image", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    stored = {
        "type": "image",
        "media_type": "image/webp",
        "ref": f"sha256:{'0' * 64}",
        "size": 48_213,
        "name": "a.webp",
    }
    pdf = {"type": "file", "media_type": "application/pdf", "data": base64.b64encode(PDF).decode(), "name": "a.pdf"}
    lost = {
        "type": "text",
        "text": "A file that the provider has made (image/png) is not kept: its bytes are no base64.",
    }
    log = RunLog().begin().answer("I draw.", FIND_7, files=[here]).start(FIND_7, {"order": 7}).settle(FIND_7, "order 7")
    return log.ask_model().write("Here ").answer("Here it is.", files=[stored, pdf, lost]).end("Here it is.")


@_named
def only_an_image() -> RunLog:
    here = {"type": "image", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    return RunLog().begin().answer("", files=[here]).end("")


def _writing() -> RunLog:
    return RunLog().begin().write("Half of ")


@_named
def stopped() -> RunLog:
    log = RunLog().begin().answer("I look.", FIND_7).start(FIND_7, {"order": 7})
    log.store("stopping", reason="Enough.").settle(FIND_7, "order 7")
    return log.end("I look.", "stopped")


@_named
def cancelled_while_a_call_runs() -> RunLog:
    return RunLog().begin().answer("I look.", FIND_7).start(FIND_7, {"order": 7}).end(status="cancelled")


@_named
def terminated_while_a_model_writes() -> RunLog:
    return _writing().end(status="terminated")


@_named
def failed() -> RunLog:
    return _writing().end(status="failed", error={"kind": "ModelRequestError", "message": "The key is wrong."})


@_named
def timed_out() -> RunLog:
    return _writing().end(status="timed_out")


@_named
def out_of_steps() -> RunLog:
    log = RunLog().begin().answer("I look.", FIND_7).start(FIND_7, {"order": 7}).settle(FIND_7, "order 7")
    return log.end("I look.", "max_steps")


@_named
def out_of_money() -> RunLog:
    return RunLog().begin().answer("I look.", FIND_7).end("I look.", "max_cost")


@_named
def cut_off_answer() -> RunLog:
    return RunLog().begin().write("Half of").answer("Half of it").end("Half of it", "truncated")


@_named
def refused_by_a_guardrail() -> RunLog:
    """No model is called."""
    return RunLog().store("run_started", turn=1, agent="shop", model="openai:a", max_steps=20).end(None, "refused")


@_named
def fallback_after_a_broken_stream() -> RunLog:
    """The text and the call of the failed model are void, also where the next one uses the call's id again."""
    log = RunLog().begin().write("Let me ").write_call(FIND_7, '{"ord').fall_back()
    log.write("I look.").write_call(FIND_7).answer("I look.", FIND_7).start(FIND_7, {"order": 7})
    return _text(log.settle(FIND_7, "order 7").ask_model()).end("Done.")


@_named
def second_attempt() -> RunLog:
    """A worker is lost while its model writes."""
    return RunLog().begin().write("Good mor").lose().write("Hel").answer("Hello.").end("Hello.")


@_named
def second_attempt_that_begins_alike() -> RunLog:
    """That the first one became void was not seen: the answer goes on where it broke off."""
    return RunLog().begin().write("Hel").answer("Hello.").end("Hello.")


@_named
def answer_that_reads_otherwise() -> RunLog:
    """Nobody has seen the end of the attempt that wrote it, nor the next one's beginning."""
    return RunLog().begin().write("Good mor").answer("Hello.").end("Hello.")


@_named
def call_that_the_answer_does_not_have() -> RunLog:
    return RunLog().begin().write_call(FIND_7, '{"ord').answer("Hello.").end("Hello.")


@_named
def turn_that_goes_on() -> RunLog:
    """A compaction stands between two steps, and three messages join the run, one of a picture alone."""
    picture = {"type": "image", "url": "https://a/b.png", "media_type": "image/png"}
    log = RunLog().begin().answer("", FIND_7).store("message", text="Hurry.").start(FIND_7, {"order": 7})
    log.settle(FIND_7, "order 7").store("message", text="And 8?").store("message", text="", content=[picture])
    log.store("compacted", step=2, messages=3, text="They look for order 7.").ask_model()
    return _text(log).end("Done.")


@_named
def empty_answer() -> RunLog:
    return RunLog().begin().answer("").end("")


@_named
def empty_answer_that_is_rejected() -> RunLog:
    log = RunLog().begin().answer("")
    log.store("answer_rejected", step=1, error={"kind": "missing_output", "message": "Your answer has no text."})
    return _text(log.ask_model()).end("Done.")


@_named
def hostile_texts() -> RunLog:
    hostile = call("c1", "find", '{"order": "' + "x" * 10 + '\\ud800 "}')
    log = (
        RunLog()
        .begin()
        .write(HOSTILE[:7], HOSTILE[7:40], HOSTILE[40:])
        .answer(HOSTILE, hostile)
        .start(hostile, {"order": HOSTILE})
    )
    return log.settle(hostile, HOSTILE, "tool_error").ask_model().answer(HOSTILE).end(HOSTILE)


@_named
def very_long_text() -> RunLog:
    return RunLog().begin().write(LONG[:60_000], LONG[60_000:90_000]).answer(LONG).end(LONG)


@_named
def structured_output() -> RunLog:
    """By a call, which no tool runs; after a text that was no output."""
    log = RunLog().begin().write("It is paid.").answer("It is paid.")
    log.store("answer_rejected", step=1, error={"kind": "missing_output", "message": "Call `Receipt`."})
    log.ask_model().write_call(RECEIPT).answer("", RECEIPT).settle(RECEIPT, "The output is accepted.")
    return log.end({"order": 7, "paid": True})


@_named
def structured_output_as_text() -> RunLog:
    return RunLog().begin().answer('{"order": 7, "paid": true}').end({"order": 7, "paid": True})
