"""Which loops are abandoned at the end of a shutdown, and which are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from background import in_background
from children import ChildFactory, supervising

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Ticket
from loopwarden.actors import ZOMBIES, AbandonRequest
from loopwarden.actors.loop._messages import BeginDrain
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import ExitCode, Service
from loopwarden.supervision.tree._executor import AT_ONCE, STOP_MORE_TIMEOUT
from loopwarden.testing import FakeClock, Hold, ProbeLoop

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

Box = InMemoryMailbox[Any, Any]
#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


def test_a_loop_that_is_given_up_leaves_its_worker_behind_and_not_its_actor() -> None:
    factory = ChildFactory()
    with Hold() as hold, supervising(children=[factory.spec("stuck", hold)]) as supervisor:
        factory.loops["stuck"][0].feed("held")
        hold.wait_reached()

        supervisor.send(AbandonRequest(reason="told to"))
        supervisor.ended.wait(60)

        assert ZOMBIES.names == ("stuck-worker",)


@pytest.mark.parametrize("stuck", [1, 6])
def test_loops_with_nothing_in_hand_end_cleanly_even_when_the_budget_is_over(clock: FakeClock, stuck: int) -> None:
    boxes: list[Box] = [InMemoryMailbox(f"box-{number}", clock=clock) for number in range(10)]
    holds = [Hold() for _ in range(stuck)]

    def handle(message: Message[Any, Any]) -> None:
        holds[message.body]()

    def make(box: Box) -> ChildSpec:
        return ChildSpec(id=box.name, start=lambda: MailboxLoop(box, handle, clock=clock), priority="critical")

    tree = Supervisor("tree", children=[make(box) for box in boxes], clock=clock)
    service = Service(tree, signals=(), clock=clock)
    returned = in_background(service.run)
    service.ref.ready.wait(60)
    for number, hold in enumerate(holds):
        boxes[number].send(number)
        hold.wait_reached()

    service.shut_down(timeout=10.0)
    service.intake_closed.wait(60)
    clock.advance(10.0)
    report = returned.wait(60)

    for hold in holds:
        hold.release()
    for box in boxes:
        box.close()
    assert report.exit_code == ExitCode.DRAIN_TIMED_OUT
    assert [loop.path for loop in report.loops if loop.abandoned] == [box.name for box in boxes[:stuck]]
    assert [loop.path for loop in report.loops if loop.clean] == [box.name for box in boxes[stuck:]]


def test_children_are_stopped_together_even_if_little_time_is_left(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    names = tuple(f"loop-{number}" for number in range(AT_ONCE + 8))
    with supervising(clock=clock, children=tuple(factory.spec(name, hold) for name in names)) as supervisor, hold:
        loops: list[ProbeLoop] = [factory.loops[name][0] for name in names]
        for loop in loops:
            loop.feed("held")
        clock.advance(0)  # each of them is held
        now, until = clock.monotonic(), clock.monotonic() + 2.0
        supervisor.tell(BeginDrain(now, until, until, Ticket(), Ticket()))  # they cannot be paused: they stop

        clock.advance(STOP_MORE_TIMEOUT)

        assert [loop for loop in loops if not loop.stop_asked.is_ready()] == []
