"""What is said of other people's things never raises, and is said once."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from loopwarden._log import MAX_TEXT, describe, flush_log, log_in_place, printable, report
from loopwarden._log_writer import LOG_THREAD, MAX_WAITING, LogWriter
from loopwarden.testing import Hold, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Emit = Callable[[logging.LogRecord], object]

#: Real seconds; they only matter when a test fails.
PATIENCE = 60.0
place: ContextVar[str] = ContextVar("place", default="nowhere")


class Odd:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class OddError(Exception):
    times = 0

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attributes")

    def __repr__(self) -> str:
        OddError.times += 1
        return "OddError()"


@pytest.mark.parametrize(("make", "text"), [(Odd, "<Odd without a repr>"), (OddError, "OddError()"), (int, "0")])
def test_describe_takes_any_object(make: type[object], text: str) -> None:
    assert describe(make()) == text


def test_an_exception_is_described_once() -> None:
    error = OddError()
    OddError.times = 0

    assert [describe(error), describe(error)] == ["OddError()", "OddError()"]
    assert OddError.times == 1


def test_a_very_long_text_is_shortened() -> None:
    text = describe(ValueError("x" * 1_000_000))

    assert len(text) < MAX_TEXT + 100
    assert text.endswith("1000014 characters in all")


class Handler(logging.Handler):
    """Keeps what it is given, or does as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.threads: list[str] = []
        self.do: Emit = lambda record: None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.threads.append(threading.current_thread().name)
        self.texts.append(f"{record.getMessage()} from {record.threadName} in {place.get()}")
        self.do(record)


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    logger = logging.getLogger("loopwarden")
    logger.addHandler(handler)
    log_in_place(on=False)
    yield handler
    assert flush_log(PATIENCE, PATIENCE)
    log_in_place(on=True)
    logger.removeHandler(handler)


def test_report_has_the_record_written_on_a_thread_for_that_with_its_own_thread_and_context(handler: Handler) -> None:
    place.set("a test")

    report(logging.WARNING, "%s is %d", "it", 1)
    assert flush_log(PATIENCE, PATIENCE)

    assert handler.texts == ["it is 1 from MainThread in a test"]
    assert handler.threads == [LOG_THREAD]


def test_report_does_not_wait_for_a_handler_that_blocks_and_what_is_dropped_is_counted_and_said(
    handler: Handler,
) -> None:
    with Hold() as hold:
        handler.do = lambda record: hold() if record.getMessage() == "first" else None
        report(logging.WARNING, "first")
        hold.wait_reached()

        for number in range(MAX_WAITING + 7):
            report(logging.WARNING, "number %d", number)
        is_written = flush_log(PATIENCE)

    assert flush_log(PATIENCE, PATIENCE)
    report(logging.WARNING, "last")
    assert flush_log(PATIENCE, PATIENCE)
    assert not is_written  # at once, long before a minute was over
    texts = [text.partition(" from ")[0] for text in handler.texts]
    assert texts[:2] == ["first", "number 0"]
    assert texts[MAX_WAITING:] == [
        f"number {MAX_WAITING - 1}",
        "7 log records were dropped, because the log did not keep up",
        "last",
    ]


def test_flush_waits_until_what_was_dropped_is_told_too(handler: Handler) -> None:
    with Hold() as hold, Hold() as telling:

        def stop_at_two(record: logging.LogRecord) -> None:
            if record.getMessage() == "first":
                hold()
            if record.getMessage().startswith("1 log records were dropped"):
                telling()

        handler.do = stop_at_two
        report(logging.WARNING, "first")
        hold.wait_reached()
        for _ in range(MAX_WAITING + 1):
            report(logging.WARNING, "more")
        hold.release()
        is_written = flush_log(PATIENCE)

        telling.wait_reached()
        assert not is_written


def test_report_in_a_handler_is_dropped_and_counted_because_it_would_never_end(handler: Handler) -> None:
    handler.do = lambda record: report(logging.WARNING, "about it") if record.msg == "it" else None

    report(logging.WARNING, "it")
    assert flush_log(PATIENCE, PATIENCE)

    assert [text.partition(" from ")[0] for text in handler.texts] == [
        "it",
        "1 log records were dropped, because the log did not keep up",
    ]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_report_goes_on_after_a_handler_that_raises(handler: Handler, error: BaseException) -> None:
    def refuse(_record: logging.LogRecord) -> None:
        handler.do = lambda record: None
        raise error

    handler.do = refuse
    report(logging.WARNING, "first")
    report(logging.WARNING, "second")
    assert flush_log(PATIENCE, PATIENCE)

    assert [text.split()[0] for text in handler.texts] == ["first", "second"]


def test_report_makes_records_with_the_factory_of_others_and_keeps_where_they_are_from(handler: Handler) -> None:
    class Record(logging.LogRecord):
        request = 7

    seen: list[tuple[object, str, str | None]] = []
    handler.do = lambda record: seen.append((getattr(record, "request", None), record.funcName, record.threadName))
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Record)
    try:
        report(logging.WARNING, "it")
        assert flush_log(PATIENCE, PATIENCE)
    finally:
        logging.setLogRecordFactory(before)

    name = "test_report_makes_records_with_the_factory_of_others_and_keeps_where_they_are_from"
    assert seen == [(7, name, "MainThread")]


def test_report_makes_no_record_of_a_disabled_level(handler: Handler) -> None:
    report(logging.DEBUG, "too much")
    logging.disable(logging.WARNING)
    try:
        report(logging.WARNING, "not now")
    finally:
        logging.disable(logging.NOTSET)

    assert flush_log(PATIENCE, PATIENCE)
    assert handler.texts == []


def test_report_writes_at_once_in_a_simulation(handler: Handler) -> None:
    with Simulation():
        report(logging.WARNING, "it")
        texts = list(handler.texts)

    assert len(texts) == 1


def test_log_writer_has_nothing_of_its_parent_in_a_child_process(handler: Handler) -> None:
    writer = LogWriter(logging.getLogger("loopwarden"))
    with Hold() as hold:
        handler.do = hold
        writer.write(logging.LogRecord("loopwarden", logging.WARNING, __file__, 1, "parent", (), None))
        hold.wait_reached()

        writer.begin()

        handler.do = lambda record: None
        # The handler's lock is held by the thread that hangs: in a child process logging makes it anew, too.
        handler.createLock()
        writer.write(logging.LogRecord("loopwarden", logging.WARNING, __file__, 1, "child", (), None))
        assert writer.flush(PATIENCE, PATIENCE)

    assert [text.split()[0] for text in handler.texts] == ["parent", "child"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 5 €", "größe 5 €"),
        ("one\ntwo\r", "one\\ntwo\\r"),
        ("\x1b[2J\x9b\x00", "\\x1b[2J\\x9b\\x00"),
        ("a\u2028b\ud800", "a\\u2028b\\ud800"),
    ],
)
def test_printable_escapes_what_a_terminal_or_a_log_would_take_for_more_than_text(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_exception_whose_repr_has_line_breaks_is_described_in_one_line() -> None:
    class Forged(Exception):  # noqa: N818  it is what it does
        def __repr__(self) -> str:
            return "Forged()\nERROR root: the disk is on fire\x1b[1A"

    assert describe(Forged()) == "Forged()\\nERROR root: the disk is on fire\\x1b[1A"


def test_log_that_hangs_at_exit_is_told_and_neither_hangs_nor_changes_the_exit() -> None:
    program = """
import logging, os, sys
from loopwarden._log import report

class Hanging(logging.Handler):
    def emit(self, record):
        os.read(os.pipe()[0], 1)

logging.getLogger("loopwarden").addHandler(Hanging())
for number in range(3):
    report(logging.WARNING, "number %d", number)
sys.exit(7)
"""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )

    assert ended.returncode == 7
    assert ended.stderr == "loopwarden: 3 log records were not written: the log hangs\n"
