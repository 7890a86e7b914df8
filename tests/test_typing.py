"""What a type checker knows: read by mypy and pyright, and true at run time too."""

from __future__ import annotations

from typing import assert_type

from loopwarden import (
    DLQConsumer,
    HealthCheckRequest,
    HealthStatus,
    LoopActor,
    LoopRef,
    MailboxLoop,
    ProcessRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    Ticket,
    check_health,
    wait_all,
)
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import ProbeLoop


def test_a_request_knows_the_type_of_its_answer() -> None:
    ref = LoopActor.start(ProbeLoop(), name="typed")

    assert_type(ref, LoopRef)
    health = assert_type(ref.send(HealthCheckRequest()), Ticket[HealthStatus])
    processed = assert_type(ref.send(ProcessRequest(body="a body")), Ticket[object])
    confirmed = assert_type(ref.send(ShutdownConfirmRequest()), Ticket[ShutdownResult])
    result = assert_type(ref.send(ShutdownRequest()), Ticket[ShutdownResult])

    assert isinstance(assert_type(health.wait(timeout=60), HealthStatus), HealthStatus)
    assert processed.wait(timeout=60) == "a body"
    assert assert_type(wait_all([confirmed, result]), list[ShutdownResult])[0].clean_shutdown
    assert assert_type(check_health([ref]), list[HealthStatus])[0].loop_name == "typed"
    assert assert_type(health.map(lambda status: status.state.value), Ticket[str]).wait() == "running"


def test_generic_classes_take_their_types_at_run_time() -> None:
    jobs: InMemoryMailbox[str, int] = InMemoryMailbox("jobs")

    loop = assert_type(MailboxLoop[str](jobs, print), MailboxLoop[str])
    consumer = assert_type(DLQConsumer[str](jobs, print), DLQConsumer[str])

    assert (type(loop), type(consumer)) == (MailboxLoop, DLQConsumer)
