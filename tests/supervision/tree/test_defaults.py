"""The defaults fit together: one poison message is survived, and a crash loop is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import ChildSpec, MailboxLoop, Supervisor
from loopwarden.actors import AbandonRequest
from loopwarden.errors import SupervisorGaveUp
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import Service
from loopwarden.testing import ProbeLoop, Simulation

if TYPE_CHECKING:
    from loopwarden.mailbox import Message


@pytest.mark.parametrize(
    ("intensity", "own", "deliveries", "is_warned"),
    [(3, None, 5, True), (5, None, 5, False), (None, None, 5, False), (3, None, None, False), (3, 2, 5, False)],
)
def test_supervisor_warns_if_it_ends_before_a_message_that_kills_its_loop_is_a_dead_letter(
    intensity: int | None,
    own: int | None,
    deliveries: int | None,
    is_warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs", max_deliveries=deliveries)
    loop = ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, print), intensity=own)

    with Supervisor.open("root", children=[loop], intensity=intensity):
        pass

    assert ("raise intensity to 5, or lower max_deliveries" in caplog.text) is is_warned


def test_loop_that_does_not_tell_which_time_outs_it_uses_is_started_with_those_of_its_tree() -> None:
    told: list[object] = []

    class Silent:
        running = False

        def use_timeouts(self, timeouts: object) -> None:
            told.append(timeouts)

        def run(self, **_options: object) -> None: ...

        def shutdown(self, *, timeout: float = 30.0) -> bool:
            return True

    loop = ChildSpec(id="loop", start=Silent, restart="transient", significant=True)
    tree = Supervisor("root", children=[loop], auto_shutdown="any_significant")

    report = Service(tree, signals=(), wait_time_seconds=7, stall_threshold=None).run()

    assert report.exit_code == 0
    assert [getattr(each, "wait_time_seconds", None) for each in told] == [7]


@pytest.mark.parametrize("seed", range(5))
def test_poison_message_ends_as_a_dead_letter_and_nothing_else(seed: int) -> None:
    with Simulation(seed=seed) as simulation:
        jobs: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs")
        done: list[str] = []

        def handle(message: Message[Any, Any]) -> None:
            if message.body == "poison":
                raise SystemExit("dead")
            done.append(message.body)

        with Supervisor.open("root", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle))]) as root:
            jobs.send_many(["before", "poison", "after"])
            simulation.advance(120)
            alive = [child.state.value for child in root.children()]

        assert alive == ["up"]
        assert sorted(done) == ["after", "before"]
        assert [letter.body for letter in jobs.dead_letters.peek()] == ["poison"]


@pytest.mark.parametrize("seed", range(5))
def test_child_that_crashes_at_every_start_makes_its_supervisor_give_up_within_two_minutes(seed: int) -> None:
    starts: list[int] = []

    def start() -> ProbeLoop:
        starts.append(1)
        if len(starts) > 1:
            raise OSError("the database is away")
        return ProbeLoop()

    with Simulation(seed=seed) as simulation:
        root = Supervisor.start("root", children=[ChildSpec(id="loop", start=start)])
        root.child("loop").send(AbandonRequest(reason="for a test")).wait()
        simulation.advance(120)

        assert isinstance(root.ended.wait(0).cause, SupervisorGaveUp)
    assert len(starts) == 8
