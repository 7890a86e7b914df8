"""A handler that waits for what needs its own end is told so, and does not run into its time-out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import (
    ChildSpec,
    HealthCheckRequest,
    LoopActor,
    MailboxLoop,
    ProcessRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    Supervisor,
    Ticket,
)
from loopwarden.errors import SelfWaitError
from loopwarden.mailbox import InMemoryMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ControlRef, Request

#: Real seconds; they only matter when a test fails.
PATIENCE = 60.0


def ask_in_a_handler(
    make: Callable[[], Request[Any]], *, concurrency: int = 1, supervised: bool = False, timeout: float | None = None
) -> object:
    """Return what a handler gets, or what is raised, when it waits for an answer of its own loop."""
    got: Ticket[object] = Ticket()
    me: Ticket[ControlRef] = Ticket()

    def handle(body: object) -> object:
        if body != "ask":
            return body
        try:
            got.complete(me.wait(PATIENCE).send(make()).wait(timeout))
        except SelfWaitError as error:
            got.complete(error)
        return None

    jobs = InMemoryMailbox[str, None]("jobs")
    jobs.send("ask")

    def loop() -> MailboxLoop[str]:
        return MailboxLoop(jobs, handle, pass_body=True, concurrency=concurrency)

    if supervised:
        with Supervisor.open("tree") as tree:
            me.complete(tree.spawn(ChildSpec(id="loop", start=loop)))
            return got.wait(PATIENCE)
    ref = LoopActor.start(loop(), name="loop")
    me.complete(ref)
    answer = got.wait(PATIENCE)
    ref.send(ShutdownRequest(timeout=PATIENCE)).wait(PATIENCE)
    return answer


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("supervised", [False, True], ids=["loop", "child"])
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("make", [ShutdownConfirmRequest, ShutdownRequest])
def test_wait_for_the_end_of_its_own_loop_is_refused(
    make: Callable[[], Request[Any]], concurrency: int, supervised: bool, timeout: float | None
) -> None:
    answer = ask_in_a_handler(make, concurrency=concurrency, supervised=supervised, timeout=timeout)

    assert isinstance(answer, SelfWaitError)
    assert str(answer).startswith(f"this thread would wait for itself: there is no answer to {make.__name__} to ")


@pytest.mark.parametrize("supervised", [False, True], ids=["loop", "child"])
def test_wait_for_a_body_that_only_its_own_worker_can_process_is_refused(supervised: bool) -> None:
    assert isinstance(ask_in_a_handler(lambda: ProcessRequest(body=7), supervised=supervised), SelfWaitError)


def test_wait_for_a_body_that_another_worker_can_process_is_answered() -> None:
    assert ask_in_a_handler(lambda: ProcessRequest(body=7), concurrency=2) == 7


@pytest.mark.parametrize("supervised", [False, True], ids=["loop", "child"])
def test_wait_for_its_own_health_is_answered(supervised: bool) -> None:
    answer: Any = ask_in_a_handler(HealthCheckRequest, supervised=supervised)

    assert answer.activity == "working"


def test_wait_for_a_shutdown_without_time_is_answered() -> None:
    answer: Any = ask_in_a_handler(lambda: ShutdownRequest(timeout=0.0))

    assert not answer.clean_shutdown
