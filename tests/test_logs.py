"""Records say in fields what they are about, and people's own records say which message was in hand."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from loopwarden import (
    ChildSpec,
    LoopActor,
    MailboxLoop,
    Message,
    ProcessRequest,
    ShutdownRequest,
    Supervisor,
    Ticket,
    WatchdogActor,
    daemon_scope,
)
from loopwarden._log import report
from loopwarden._log_writer import fields_of
from loopwarden._running import running
from loopwarden._tracebacks import MAX_TRACEBACK
from loopwarden.actors import AbandonRequest, ControlActor
from loopwarden.errors import StartFailed, SupervisorGaveUp
from loopwarden.logs import ContextFilter, JsonFormatter
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwarden.testing import Simulation

#: Real seconds; they only matter when a test fails.
PATIENCE = 60.0


class Kept(logging.Handler):
    """Keeps records, and the lines that are made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.lines: list[dict[str, Any]] = []
        self.setFormatter(JsonFormatter())

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def ours() -> Iterator[Kept]:
    handler = Kept()
    logging.getLogger("loopwarden").addHandler(handler)
    yield handler
    logging.getLogger("loopwarden").removeHandler(handler)


@pytest.fixture
def theirs() -> Iterator[Kept]:
    handler = Kept()
    handler.addFilter(ContextFilter())
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


def test_report_gives_the_record_its_fields_and_the_description_of_the_error(ours: Kept) -> None:
    report(logging.WARNING, "it %s", "failed", error=ValueError("no"), loop="orders", attempt=2)

    assert fields_of(ours.records[0]) == {"loop": "orders", "attempt": 2, "error": "ValueError('no')"}


def test_report_gives_the_record_what_its_thread_has_in_hand(ours: Kept) -> None:
    running.loop, running.message_id, running.delivery = "orders", "m1", 3
    try:
        report(logging.WARNING, "it", loop="another")
    finally:
        running.loop = None
        running.leave_message()

    assert fields_of(ours.records[0]) == {"loop": "another", "message_id": "m1", "delivery": 3}


def test_report_keeps_the_fields_of_a_record_that_the_factory_of_others_makes(ours: Kept) -> None:
    class Record(logging.LogRecord):
        request = 7

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Record)
    try:
        report(logging.WARNING, "it", loop="orders")
    finally:
        logging.setLogRecordFactory(before)

    assert (type(ours.records[0]), fields_of(ours.records[0])) == (Record, {"loop": "orders"})


def test_report_cuts_the_traceback_of_an_error_with_a_very_long_text(ours: Kept) -> None:
    report(logging.ERROR, "it failed", error=ValueError("x" * 5_000_000 + "the end"))

    record = ours.records[0]
    text = logging.Formatter().format(record)
    assert len(text) < MAX_TRACEBACK + 200
    assert text.startswith("it failed\nValueError: xxx")
    assert text.endswith("the end")
    assert record.exc_info is not None
    assert len(json.dumps(ours.lines[0])) < MAX_TRACEBACK + 10_000


def test_report_keeps_a_stack_that_the_factory_of_others_does_not_know(ours: Kept) -> None:
    class Record(logging.LogRecord):
        request = 7

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Record)
    try:
        report(logging.WARNING, "it hangs", stack='  File "shop.py", line 1, in sell\n')
    finally:
        logging.setLogRecordFactory(before)

    assert ours.lines[0]["stack"] == '  File "shop.py", line 1, in sell'
    assert logging.Formatter().format(ours.records[0]) == 'it hangs\n  File "shop.py", line 1, in sell'


def first_frame(record: logging.LogRecord) -> str:
    assert record.exc_info is not None
    trace = record.exc_info[2]
    assert trace is not None
    return trace.tb_frame.f_code.co_name


def test_report_begins_the_traceback_of_a_handler_at_the_handler(ours: Kept) -> None:
    def refuse(message: Message[int, None]) -> None:
        raise ValueError(message.body)

    jobs = InMemoryMailbox[int, None]("jobs", max_deliveries=1)
    jobs.send(1)
    MailboxLoop(jobs, refuse).run(max_iterations=1, wait_time_seconds=0)

    record = next(each for each in ours.records if each.exc_info)
    assert first_frame(record) == "refuse"


def test_report_leaves_a_traceback_without_code_of_users_as_it_is(ours: Kept) -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    assert raised.value.__traceback__ is not None
    inner = raised.value.__traceback__.tb_next  # without this test

    report(logging.ERROR, "it failed", error=raised.value.with_traceback(inner))

    info = ours.records[0].exc_info
    assert info is not None
    assert info[2] is inner


def test_context_filter_says_which_message_the_handler_of_a_loop_has_in_hand(theirs: Kept) -> None:
    def handle(message: Message[int, None]) -> None:
        logging.getLogger("shop").info("sold %d", message.body)
        if message.body == 7:
            handled.complete(None)

    handled: Ticket[None] = Ticket()
    jobs = InMemoryMailbox[int, None]("jobs")
    sent = jobs.send(7)
    ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), name="orders")
    handled.wait(PATIENCE)
    ref.send(ProcessRequest(body=8)).wait(PATIENCE)
    ref.send(ShutdownRequest(timeout=PATIENCE)).wait(PATIENCE)
    logging.getLogger("shop").info("closed")

    told = {line["message"]: (line.get("loop"), line.get("message_id"), line.get("delivery")) for line in theirs.lines}
    assert told["sold 7"] == ("orders", sent, 1)
    assert told["sold 8"] == ("orders", None, None)
    assert told["closed"] == (None, None, None)


def test_context_filter_lets_a_formatter_use_every_field_on_any_thread(theirs: Kept) -> None:
    theirs.setFormatter(logging.Formatter("%(loop)s %(mailbox)s %(message_id)s %(delivery)s %(message)s"))
    record = logging.makeLogRecord({"msg": "it", "loop": "mine"})

    assert ContextFilter().filter(record)

    assert theirs.formatter is not None
    assert theirs.formatter.format(record) == "mine None None None it"


def the_line(ours: Kept, text: str) -> dict[str, Any]:
    [line] = [line for line in ours.lines if text in line["message"]]
    return line


def about(line: dict[str, Any]) -> tuple[object, ...]:
    return tuple(line.get(name) for name in ("loop", "mailbox", "message_id", "delivery"))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_loop_actor_that_a_message_has_ended_reports_which(
    ours: Kept, simulation: Simulation, concurrency: int
) -> None:
    def handle(message: Message[str, None]) -> None:
        if message.body == "bad":
            raise SystemExit("bye")

    jobs = InMemoryMailbox[str, None]("jobs")
    jobs.send_many(["good", "good"])
    ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=concurrency), name="w")
    simulation.settle()
    bad = jobs.send("bad")
    ref.ended.wait()

    line = the_line(ours, "was ended by SystemExit('bye')")
    assert about(line) == ("w", "jobs", bad, 1)
    assert line["actor"] == "LoopActor 'w'"


def test_loop_actor_that_is_abandoned_reports_what_it_has_in_hand(ours: Kept, simulation: Simulation) -> None:
    jobs = InMemoryMailbox[int, None]("jobs")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, lambda _: hold(), concurrency=2), name="w")
        simulation.settle()
        first, second = (jobs.send(each) for each in range(2))
        simulation.settle()
        ref.send(AbandonRequest(reason="too slow")).wait()
        ref.ended.wait()

        line = the_line(ours, "was ended by LoopAbandonedError")
    assert line["message_id"] in {first, second}
    assert (line["loop"], line["mailbox"], line["delivery"], line["in_hand"]) == ("w", "jobs", 1, 2)


@pytest.mark.parametrize("has_supervisor", [True, False])
def test_watchdog_has_each_step_reported_once_with_the_message_and_the_stack(
    ours: Kept, simulation: Simulation, *, has_supervisor: bool
) -> None:
    def get_stuck(message: Message[str, None]) -> None:
        if message.delivery_count == 1:
            hold()
        else:
            handled.complete(None)

    handled: Ticket[None] = Ticket()
    jobs = InMemoryMailbox[str, None]("jobs")
    spec = ChildSpec(id="w", start=lambda: MailboxLoop(jobs, get_stuck, concurrency=2))
    with Hold() as hold, Supervisor.open("shop", children=[spec] if has_supervisor else []) as shop:
        loop = LoopActor.start(MailboxLoop(jobs, get_stuck, concurrency=2), name="w") if not has_supervisor else None
        with daemon_scope() as scope:
            scope.spawn(WatchdogActor([loop or shop], stall_threshold=60))
            sent = jobs.send("a picture")
            handled.wait()
        if loop is not None:
            loop.stop()

        steps = [line for line in ours.lines if line["message"].startswith("worker ")]
    ends = ["given no sign of life for 6", "was recalled after 6", "was abandoned (silent for 7"]
    assert [end in line["message"] for end, line in zip(ends, steps, strict=True)] == [True, True, True]
    assert all(line["message"].endswith(f", with message {sent} (delivery 1) in hand") for line in steps)
    assert [about(line) for line in steps] == 3 * [("w", "jobs", sent, 1)]
    assert all("\n" not in line["message"] for line in steps)
    assert all(line["stack"].splitlines()[0].endswith("in get_stuck") for line in steps)
    assert "in get_stuck\n" in logging.Formatter().format(ours.records[0])


def test_supervisor_reports_with_its_own_name_and_that_of_the_child(ours: Kept) -> None:
    def fail() -> ProbeLoop:
        raise ValueError("no")

    with Supervisor.open("shop", children=[]) as supervisor:
        with pytest.raises(Exception, match="no"):
            supervisor.spawn(ChildSpec(id="till", start=fail))
        line = next(line for line in ours.lines if "could not be started" in line["message"])

    assert (line["supervisor"], line["child"], line["error"]) == ("shop", "till", "ValueError('no')")


def fail_to_make() -> ProbeLoop:
    raise ValueError("no")


@pytest.mark.parametrize("is_opened", [True, False])
def test_supervisor_whose_first_child_cannot_be_made_tells_the_traceback_once(
    ours: Kept, simulation: Simulation, *, is_opened: bool
) -> None:
    spec = ChildSpec(id="till", start=fail_to_make)
    if is_opened:
        with pytest.raises(StartFailed) as raised:
            Supervisor.start("shop", children=[spec])
        error: BaseException | None = raised.value
    else:  # the log is the only one that hears of it
        error = Supervisor("shop", children=[spec]).launch().ended.wait().cause

    assert error is not None
    cause = error.__cause__
    assert cause is not None
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_code.co_name == "fail_to_make"
    failed, ended = ours.records
    assert (failed.getMessage(), ended.getMessage()) == (
        "child 'till' could not be started: ValueError('no')",
        f"Supervisor 'shop' was ended by {error!r}",
    )
    assert (None if failed.exc_info is None else first_frame(failed)) == (None if is_opened else "fail_to_make")
    assert (ended.exc_info, fields_of(ended)["error"], fields_of(ended)["supervisor"]) == (None, repr(error), "shop")


def test_supervisor_tells_the_traceback_of_a_restart_that_failed(ours: Kept, simulation: Simulation) -> None:
    made: list[ProbeLoop] = []

    def make() -> ProbeLoop:
        if made:
            return fail_to_make()
        made.append(ProbeLoop())
        return made[0]

    with Supervisor.open("shop", children=[ChildSpec(id="till", start=make)], intensity=1) as shop:
        shop.child("till").send(AbandonRequest())
        with pytest.raises(SupervisorGaveUp):
            shop.wait()

    failed = [each for each in ours.records if each.getMessage().startswith("child 'till' could not be started")]
    assert {first_frame(each) for each in failed} == {"make"}
    assert ours.records[-1].getMessage().startswith("Supervisor 'shop' was ended by SupervisorGaveUp")
    assert ours.records[-1].exc_info is None


def test_supervisor_does_not_tell_again_what_ended_an_actor_before_it_was_up(
    ours: Kept, simulation: Simulation
) -> None:
    class Broken(ControlActor):
        def on_start(self) -> None:
            raise ValueError("no")

    with pytest.raises(StartFailed):
        Supervisor.start("shop", children=[ChildSpec(id="till", start=Broken)])

    assert [each.exc_info is not None for each in ours.records] == [True, False, False]


def test_supervisor_in_a_supervisor_has_a_traceback_told_once(ours: Kept, simulation: Simulation) -> None:
    inner = ChildSpec(id="inner", start=lambda: Supervisor("inner", children=[ChildSpec(id="a", start=fail_to_make)]))

    Supervisor("outer", children=[inner]).launch().ended.wait()

    assert [each.exc_info is not None for each in ours.records] == [True, False, False, False]


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


LOOPED: list[object] = []
LOOPED.append(LOOPED)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (7, 7),
        ({"a": [1, None, "ü\n"]}, {"a": [1, None, "ü\n"]}),
        (Odd(), "<Odd without a repr>"),
        ([Odd()], ["<Odd without a repr>"]),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (float("nan"), "nan"),
        (LOOPED, "[[...]]"),
        (10**5_000, "<int without a repr>"),
        ("\ud800", "\ud800"),
        (b"x", "b'x'"),
    ],
    ids=["number", "nested", "odd", "odd inside", "key", "nan", "circle", "huge", "surrogate", "bytes"],
)
def test_json_formatter_writes_any_field_in_one_line(value: object, written: object) -> None:
    line = JsonFormatter().format(logging.makeLogRecord({"msg": "it", "field": value}))

    assert json.loads(line)["field"] == written
    assert line.isascii()
    assert "\n" not in line


def test_json_formatter_has_its_keys_in_order_and_keeps_fields_of_the_same_name() -> None:
    record = logging.makeLogRecord(
        {"created": 1.5, "levelname": "INFO", "name": "shop", "msg": "%d sold", "args": (3,), "level": 9, "order": 7}
    )

    assert JsonFormatter().format(record) == (
        '{"time": "1970-01-01T00:00:01.500Z", "level": "INFO", "logger": "shop", "message": "3 sold",'
        ' "level_": 9, "order": 7}'
    )


@pytest.mark.parametrize(
    "record",
    [
        {"msg": "%d sold", "args": ("three",)},
        {"msg": Odd()},
        {"msg": "it", "args": (Odd(),)},
        {"msg": "it", "created": float("inf")},
        {"msg": "it", "exc_info": (OddError, OddError(), None)},
        {"msg": "it", "exc_info": (None, None, None)},
        {"msg": "it", "stack_info": "Stack:\n  here"},
        {"msg": "it", "exc_text": 5},
        {"msg": "it", 7: "a key that is no text"},
    ],
    ids=["arguments", "text", "odd argument", "time", "error", "no error", "stack", "trace", "key"],
)
def test_json_formatter_never_raises(record: dict[Any, object]) -> None:
    line = JsonFormatter().format(logging.makeLogRecord(record))

    assert isinstance(json.loads(line)["message"], str)
    assert "\n" not in line


def test_running_belongs_to_one_thread() -> None:
    running.loop = "orders"
    seen: list[str | None] = []
    thread = threading.Thread(target=lambda: seen.append(running.loop))  # noqa: TID251  a plain thread is the point
    thread.start()
    thread.join(PATIENCE)
    running.loop = None

    assert seen == [None]
