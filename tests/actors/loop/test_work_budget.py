"""One limit of messages in hand for several loops."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import HealthCheckRequest, LoopActor, ShutdownRequest, Ticket, check_health, wait_all
from loopwarden._blocking import SYSTEM
from loopwarden.actors import AbandonRequest, Activity, MailboxLoop, WorkBudget
from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox import InMemoryMailbox, Message, SqliteMailbox, Token
from loopwarden.testing import FakeClock, Hold, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loopwarden import LoopRef
    from loopwarden.actors.loop._work_budget import Permit

pytestmark = pytest.mark.usefixtures("loop_kind")

Mail = Message[Any, Any]
Box = InMemoryMailbox[Any, Any]


def boxes(count: int, messages: int) -> list[Box]:
    made: list[Box] = [InMemoryMailbox(f"box-{number}") for number in range(count)]
    for box in made:
        box.send_many(list(range(messages)))
    return made


def stop(*refs: LoopRef) -> None:
    wait_all([ref.send(ShutdownRequest(timeout=60)) for ref in refs], timeout=60)


class Watch:
    """Counts what is in hand, in all loops together, and what each of them has done until all is done."""

    def __init__(self, total: int, work: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._work = work
        self._left = total
        self.now = 0
        self.most = 0
        self.done: Counter[str] = Counter()
        self.all_done: Ticket[None] = Ticket()

    def handle(self, message: Mail) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        Token().wait(self._work)
        with self._lock:
            self.now -= 1
            self._left -= 1
            self.done[message.settler.name] += 1
            is_last = self._left == 0
        if is_last:
            self.all_done.complete(None)


def hold_all(budget: WorkBudget) -> list[Permit]:
    share = budget.share()
    permits = [budget.take(share, Token()) for _ in range(budget.limit)]
    return [permit for permit in permits if permit is not None]


@pytest.mark.parametrize("workers", [1, 3], ids=["one worker", "one, two or three workers"])
@pytest.mark.threads
def test_work_budget_is_never_exceeded_and_every_loop_has_its_share(workers: int) -> None:
    with Simulation(seed=workers) as simulation:
        check_shares(workers, simulation)


def check_shares(workers: int, simulation: Simulation) -> None:
    mailboxes, budget = boxes(20, 200), WorkBudget(5)
    counts = [1 + number % workers for number in range(20)]
    watch, held = Watch(1_000, work=0.01), hold_all(budget)
    refs = [
        LoopActor.start(MailboxLoop(box, watch.handle, budget=budget, concurrency=count), box.name)
        for box, count in zip(mailboxes, counts, strict=True)
    ]
    simulation.advance(1)
    waiting = budget.snapshot().waiting
    for permit in held:
        permit.release()

    watch.all_done.wait()
    shares = [watch.done[box.name] for box in mailboxes]
    stop(*refs)

    assert waiting == sum(counts)
    assert watch.most == 5
    assert min(shares) >= 25, shares  # half of the fair share, which is 50
    assert budget.snapshot().used == budget.snapshot().waiting == 0


def test_work_budget_at_its_limit_lets_no_worker_receive_and_what_waits_is_not_leased(clock: FakeClock) -> None:
    mailboxes, budget = boxes(20, 3), WorkBudget(5)
    watch, began = Watch(60), itertools.count(1)
    with Hold() as hold:

        def handle(message: Mail) -> None:
            next(began)
            hold(message)
            watch.handle(message)

        refs = [LoopActor.start(MailboxLoop(box, handle, budget=budget), box.name) for box in mailboxes]
        clock.advance(1)
        statuses = check_health(refs)
        untouched = [box.receive(max_messages=10, visibility_timeout=0) for box in mailboxes]

        assert sum(len(status.in_hand) for status in statuses) == 5
        assert Counter(len(messages) for messages in untouched) == {3: 15, 2: 5}
        assert next(began) == 6
    watch.all_done.wait(60)
    stop(*refs)


def test_work_budget_lets_all_messages_be_handled() -> None:
    mailboxes, budget = boxes(20, 50), WorkBudget(limit=5)
    watch = Watch(20 * 50)
    refs = [LoopActor.start(MailboxLoop(box, watch.handle, budget=budget), box.name) for box in mailboxes]

    watch.all_done.wait(60)
    stop(*refs)

    assert set(watch.done.values()) == {50}
    assert [box.approximate_count() for box in mailboxes] == [0] * 20


def test_loop_at_the_limit_receives_nothing_and_says_why(clock: FakeClock) -> None:
    first, second = boxes(2, 1)
    budget = WorkBudget(1, "database")
    with Hold() as hold:
        busy = LoopActor.start(MailboxLoop(first, hold, budget=budget), "busy")
        hold.wait_reached()
        waits = LoopActor.start(MailboxLoop(second, lambda _: None, budget=budget), "waits")
        clock.advance(1)
        status = waits.send(HealthCheckRequest()).wait(60)

        assert (status.activity, second.approximate_count()) == (Activity.THROTTLED, 1)
        assert status.budget is not None
        assert (status.budget.name, status.budget.limit, status.budget.used, status.budget.waiting) == (
            "database",
            1,
            1,
            1,
        )
    stop(busy, waits)


def test_stop_ends_the_wait_for_a_permit(clock: FakeClock) -> None:
    first, second = boxes(2, 1)
    budget = WorkBudget(1)
    with Hold() as hold:
        busy = LoopActor.start(MailboxLoop(first, hold, budget=budget), "busy")
        hold.wait_reached()
        waits = LoopActor.start(MailboxLoop(second, lambda _: None, budget=budget), "waits")
        clock.advance(1)

        assert budget.snapshot().waiting == 1
        assert waits.send(ShutdownRequest(timeout=60)).wait(60).clean_shutdown
        assert budget.snapshot().waiting == 0
    stop(busy)


def test_loops_that_have_nothing_to_receive_hold_nothing() -> None:
    empty, full = boxes(1, 0)[0], boxes(1, 3)[0]
    watch, budget = Watch(3), WorkBudget(limit=1)
    idle = [LoopActor.start(MailboxLoop(empty, print, budget=budget), f"idle-{number}") for number in range(3)]
    working = LoopActor.start(MailboxLoop(full, watch.handle, budget=budget), "working")

    watch.all_done.wait(60)
    stop(*idle, working)

    assert watch.done == {"box-0": 3}


def test_a_worker_that_was_given_up_gives_its_permit_back() -> None:
    [box], budget = boxes(1, 2), WorkBudget(limit=1)
    seen: Ticket[Any] = Ticket()
    with Hold() as hold:

        def handle(message: Mail) -> None:
            if message.delivery_count == 1 and message.body == 0:
                hold(message)
            elif not seen.is_ready():
                seen.complete(message.body)

        stuck = LoopActor.start(MailboxLoop(box, handle, budget=budget), "stuck")
        hold.wait_reached()
        stuck.send(AbandonRequest(reason="it hangs")).wait(60)
        other = LoopActor.start(MailboxLoop(box, handle, budget=budget), "other")

        assert seen.wait(60) == 0
        stop(other)
    stuck.ended.wait(60)
    assert budget.snapshot().used == 0


def test_a_crash_gives_the_permit_back() -> None:
    [box], budget = boxes(1, 1), WorkBudget(limit=1)

    def die(message: Mail) -> None:
        raise SystemExit

    ref = LoopActor.start(MailboxLoop(box, die, budget=budget), "dies")
    ref.ended.wait(60)

    assert budget.snapshot().used == 0


def test_heavy_message_counts_as_much_as_its_weight(clock: FakeClock) -> None:
    heavy, light = boxes(2, 1)
    budget = WorkBudget(3)
    with Hold() as hold:
        carries = LoopActor.start(MailboxLoop(heavy, hold, budget=budget, weight=3), "heavy")
        hold.wait_reached()
        waits = LoopActor.start(MailboxLoop(light, print, budget=budget), "light")
        clock.advance(1)
        status = waits.send(HealthCheckRequest()).wait(60)

        assert status.activity is Activity.THROTTLED
        assert status.budget is not None
        assert (status.budget.used, status.budget.waiting) == (3, 1)
        stop(waits)
    stop(carries)


def test_light_message_does_not_pass_a_heavy_one_that_waits(clock: FakeClock) -> None:
    budget = WorkBudget(2)
    heavy, light = budget.share(2), budget.share(1)
    first = budget.take(light, Token())
    token, taken = Token(), Ticket[Any]()
    clock.blocking.start_thread(lambda: taken.complete(budget.take(heavy, token)), "heavy")
    clock.advance(1)
    nudged = Token()
    nudged.nudge()

    assert first is not None
    assert budget.take(light, nudged) is None  # there is room for it, but it is not its turn
    first.release()
    first.release()
    assert taken.wait(60) is not None
    assert budget.snapshot().used == 2
    taken.wait(0).release()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5"], ids=repr)
def test_work_budget_refuses_a_limit_that_is_not_a_positive_number(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit of 'b' must be a whole number from 1 on"):
        WorkBudget(limit, "b")


@pytest.mark.parametrize("weight", [0, 6, 1.5, True], ids=repr)
def test_a_weight_that_never_fits_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="weight must be a whole number from 1 to the limit 5"):
        WorkBudget(5).share(weight)


@pytest.mark.threads
def test_prefetching_and_a_budget_do_not_go_together(jobs: Box) -> None:
    with pytest.raises(TypeError, match=r"takes one message at a time.*prefetch=2"):
        MailboxLoop(jobs, print, budget=WorkBudget(5), prefetch=2)


def test_dead_letters_cannot_be_waited_for(jobs: Box) -> None:
    with pytest.raises(TypeError, match="SupportsWaitVisible"):
        MailboxLoop(jobs.dead_letters, print, budget=WorkBudget(5))


# Waiting without receiving.


@pytest.fixture(params=["memory", "sqlite"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    memory: Box = InMemoryMailbox("jobs")
    sqlite: SqliteMailbox[Any, Any] = SqliteMailbox(tmp_path / "mail.db", "jobs")
    yield memory if request.param == "memory" else sqlite
    memory.close()
    sqlite.close()


def waiting(box: Any, token: Token | None = None) -> Ticket[bool]:
    answer: Ticket[bool] = Ticket()

    def wait() -> None:
        try:
            answer.complete(box.wait_visible(20, token))
        except MailboxClosedError as error:
            answer.fail(error)

    SYSTEM.start_thread(wait, "waits")
    return answer


def test_wait_visible_tells_all_waiters_of_a_message_and_receives_none(box: Any) -> None:
    answers = [waiting(box) for _ in range(3)]
    box.send("here")

    assert wait_all(answers, timeout=60) == [True, True, True]
    assert [message.delivery_count for message in box.receive()] == [1]


def test_wait_visible_with_a_time_out_of_zero_does_not_wait(box: Any) -> None:
    nothing = box.wait_visible(0)
    box.send("here")

    assert (nothing, box.wait_visible(0)) == (False, True)


def test_a_stopped_token_ends_the_wait(box: Any) -> None:
    token = Token()
    answer = waiting(box, token)
    token.stop()
    box.send("here")

    assert answer.wait(60) is False


def test_the_close_of_the_mailbox_ends_the_wait(box: Any) -> None:
    answer = waiting(box)
    box.close()

    with pytest.raises(MailboxClosedError):
        answer.wait(60)


def test_a_lease_that_ends_is_told(box: Any) -> None:
    box.send("here")
    box.receive(visibility_timeout=0.05)

    assert waiting(box).wait(60) is True


def test_a_receive_that_waits_beside_gets_the_message(box: Any) -> None:
    token, received = Token(), Ticket[Any]()
    waits = waiting(box, token)
    SYSTEM.start_thread(lambda: received.complete(box.receive(wait_time_seconds=20)), "receives")
    box.send("here")

    assert [message.body for message in received.wait(60)] == ["here"]
    token.stop()  # if it was not told, because the other was faster
    assert waits.wait_ready(60)
