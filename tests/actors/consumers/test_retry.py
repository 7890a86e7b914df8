"""What becomes of a message whose handler raised, by the class of what it raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Backoff, MailboxLoop
from loopwarden.errors import Retry
from loopwarden.mailbox import InMemoryMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox import Message
    from loopwarden.testing import FakeClock

pytestmark = pytest.mark.usefixtures("loop_kind")

Box = InMemoryMailbox[Any, Any]


class RateLimited(Exception):  # noqa: N818  as a user may name it
    pass


class InvalidOrder(Exception):  # noqa: N818  as above
    pass


class InvalidAddress(InvalidOrder):
    pass


RULES: dict[type[Exception], Any] = {
    RateLimited: Backoff(minimum=40, maximum=40, jitter=0),
    InvalidOrder: "dead_letter",
}


def raising(error: Exception) -> Callable[[Message[Any, Any]], None]:
    def handle(message: Message[Any, Any]) -> None:
        raise error

    return handle


def run_once(jobs: Box, clock: FakeClock, error: Exception, **options: Any) -> MailboxLoop[Any]:
    jobs.send("body")
    loop = MailboxLoop(jobs, raising(error), backoff=Backoff(minimum=1, jitter=0), clock=clock, **options)
    loop.run(max_iterations=1, wait_time_seconds=0)
    return loop


def due_after(jobs: Box, clock: FakeClock) -> float:
    """Return after how many seconds the message can be received again."""
    began = clock.monotonic()
    for _ in range(100):
        if jobs.receive():
            break
        clock.advance(1)
    return clock.monotonic() - began


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(ValueError(), 1), (RateLimited(), 40), (Retry(after=30), 30), (Retry(), 0)],
    ids=["no rule", "its own back-off", "as the handler says", "at once"],
)
def test_message_comes_back_after_the_time_of_its_rule(
    jobs: Box, clock: FakeClock, error: Exception, seconds: float
) -> None:
    run_once(jobs, clock, error, retry=RULES)

    assert due_after(jobs, clock) == seconds


@pytest.mark.parametrize("error", [InvalidOrder("no such article"), InvalidAddress("no such town")])
def test_message_that_is_to_be_a_dead_letter_is_one_at_once(jobs: Box, clock: FakeClock, error: Exception) -> None:
    run_once(jobs, clock, error, retry=RULES)

    [letter] = [each.body for each in jobs.dead_letters.receive()]
    assert (letter.delivery_count, letter.reason, letter.error) == (1, "its handler refused it", repr(error))
    assert jobs.approximate_count() == 0


def test_nearest_class_counts(jobs: Box, clock: FakeClock) -> None:
    rules: dict[type[Exception], Any] = {InvalidOrder: "dead_letter", InvalidAddress: Backoff(minimum=7, jitter=0)}

    run_once(jobs, clock, InvalidAddress(), retry=rules)

    assert due_after(jobs, clock) == 7


class Later(Retry):
    def __init__(self) -> None:
        """Say nothing, not even to the class above."""


class Classless(Exception):  # noqa: N818  as a user may name it
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@pytest.mark.parametrize(("error", "after"), [(Later, 0), (Classless, 1)])
def test_odd_exception_gives_the_message_back_and_does_not_end_the_loop(
    jobs: Box, clock: FakeClock, error: type[Exception], after: float
) -> None:
    run_once(jobs, clock, error(), crash_on=(KeyError,))

    assert due_after(jobs, clock) == after


def test_retry_is_no_failure(jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    loop = run_once(jobs, clock, Retry(after=5, reason="the shop is closed"), breaker=1)

    told = [(each.failed, each.returned, each.last_error) for each in loop.progress]
    assert [each for each in told if each != (0, 0, None)] == [(0, 1, None)]
    assert not caplog.records
    [letter] = _exhaust(jobs, clock)
    assert letter.error == "Retry('to be tried again after 5 s: the shop is closed')"


def raise_with_cause() -> None:
    raise Retry(0.2) from ConnectionError("503")


def raise_in_context() -> None:
    try:
        int("503!")
    except ValueError:
        raise Retry(0.2)  # noqa: B904  as a user may write it


def raise_without_context() -> None:
    try:
        int("503!")
    except ValueError:
        raise Retry(0.2) from None


@pytest.mark.parametrize(
    ("handle", "cause"),
    [
        (raise_with_cause, ", because of ConnectionError('503')"),
        (raise_in_context, """, because of ValueError("invalid literal for int() with base 10: '503!'")"""),
        (raise_without_context, ""),
    ],
)
def test_retry_keeps_its_cause_in_the_dead_letter(clock: FakeClock, handle: Callable[[], None], cause: str) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1, clock=clock)
    jobs.send("body")

    MailboxLoop(jobs, lambda _message: handle(), clock=clock).run(max_iterations=1, wait_time_seconds=0)

    [letter] = jobs.dead_letters.peek()
    assert letter.error == f"Retry('to be tried again after 0.2 s'){cause}"


def _exhaust(jobs: Box, clock: FakeClock) -> list[Any]:
    for _ in range(4):
        clock.advance(100)
        MailboxLoop(jobs, raising(Retry(5, "the shop is closed")), clock=clock).run(
            max_iterations=1, wait_time_seconds=0
        )
    return [each.body for each in jobs.dead_letters.receive(max_messages=5)]


@pytest.mark.parametrize("after", [-1, "5", None, float("nan"), float("inf"), 43_201, True])
def test_retry_with_a_time_that_is_none_is_refused(after: Any) -> None:
    with pytest.raises(ValueError, match="after must be a number of seconds from 0 to 43200, got "):
        Retry(after)


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ([ValueError], "retry must be a mapping of exception classes"),
        ({"ValueError": Backoff()}, "retry must have subclasses of Exception as its keys, got 'ValueError'"),
        ({SystemExit: Backoff()}, "retry must have subclasses of Exception as its keys"),
        ({ValueError: 5}, r"retry\[ValueError\] must be a Backoff, .* or \"dead_letter\", got 5"),
        ({ValueError: "dead"}, r"retry\[ValueError\] must be a Backoff, .*, got 'dead'"),
    ],
)
def test_rules_that_are_none_are_refused(rules: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        MailboxLoop(InMemoryMailbox[Any, Any]("jobs"), print, retry=rules)


def test_rule_with_a_back_off_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"retry\[OSError\]\.maximum must be at most 43200 s"):
        MailboxLoop(InMemoryMailbox[Any, Any]("jobs"), print, retry={OSError: Backoff(maximum=50_000)})


@pytest.mark.threads
def test_handler_that_returns_a_coroutine_is_told_once(
    jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> None: ...

    jobs.send_many([1, 2, 3])
    MailboxLoop(jobs, lambda message: later(), clock=clock).run(max_iterations=3, wait_time_seconds=0)

    assert caplog.text.count("an async def, but this one returned a coroutine, so nothing was done") == 1


def takes_two(message: object, context: object) -> None: ...


def takes_a_keyword(*, message: object) -> None: ...


@pytest.mark.parametrize("handler", [lambda: 0, takes_two, takes_a_keyword], ids=["none", "two", "keyword"])
@pytest.mark.threads
def test_handler_that_does_not_take_one_argument_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"handler must take one argument, the message, but .* takes "):
        MailboxLoop(InMemoryMailbox[Any, Any]("jobs"), handler)


def test_handler_gets_the_body_if_that_is_asked_for(jobs: Box, clock: FakeClock) -> None:
    seen: list[Any] = []
    jobs.send("body")

    MailboxLoop(jobs, seen.append, pass_body=True, clock=clock).run(max_iterations=1)

    assert seen == ["body"]
