from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from loopwarden.actors import Activity, HealthStatus, LoopState, WorkerStatus
from loopwarden.supervision import Probe, ProbeAnswer, StallPolicy, judge_health

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 1_000.0
#: Its ladder is over after 13 seconds.
POLICY = StallPolicy(threshold=10.0)


def loop(name: str = "mail", **fields: Any) -> HealthStatus:
    fields = {"state": LoopState.RUNNING, "running": True, "polled": True, "activity": Activity.POLLING, **fields}
    return HealthStatus(loop_name=name, last_heartbeat=None, heartbeat_age=None, **fields)


def worker(number: int = 7, **fields: Any) -> WorkerStatus:
    fields = {"activity": Activity.WORKING, "silent_for": 0.0, **fields}
    return WorkerStatus(worker=number, **fields)


def silent(seconds: float, **fields: Any) -> HealthStatus:
    return loop(activity=Activity.WORKING, workers=(worker(silent_for=seconds),), **fields)


def judge(probe: Probe, *statuses: HealthStatus, is_closing: bool = False, **options: Any) -> ProbeAnswer:
    return judge_health(probe, statuses, now=NOW, is_closing=is_closing, policy=POLICY, **options)


BACKING_OFF = loop(state=LoopState.FAILED, running=False, polled=False, activity=Activity.BACKING_OFF)
WAITS = loop(
    state=LoopState.FAILED, running=False, polled=False, activity=Activity.BACKING_OFF, retry_at=NOW + 3.25, restarts=2
)
DEGRADED = loop(activity=Activity.DEGRADED, activity_since=NOW - 12.3)
ONE_DEGRADED = loop(
    workers=(worker(), worker(8, activity=Activity.DEGRADED, activity_since=NOW - 4.0, silent_for=3_600.0))
)
STALLED = loop(activity=Activity.STALLED, workers=(worker(silent_for=10.5),))
NOT_POLLED = "loop 'mail' has not polled yet"

CASES = [
    # What it is, and why it is not live, not ready, not started; None if it is.
    ("polling", loop(), None, None, None),
    ("working", silent(9.9), None, None, None),
    ("idle", loop(state=LoopState.IDLE, polled=False), None, "loop 'mail' is not started yet", NOT_POLLED),
    ("starting", loop(state=LoopState.STARTING, polled=False), None, "loop 'mail' is starting", NOT_POLLED),
    ("not-polled", loop(polled=False), None, None, NOT_POLLED),
    ("stopping", loop(state=LoopState.STOPPING), None, "loop 'mail' is stopping", None),
    ("stopped", loop(state=LoopState.STOPPED, activity=None, polled=False), None, None, None),
    ("failed", loop(state=LoopState.FAILED, activity=None), None, "loop 'mail' has failed", None),
    ("backing-off", BACKING_OFF, None, "loop 'mail' is backing off until its restart", NOT_POLLED),
    ("waits", WAITS, None, "loop 'mail' is backing off; it will be restarted in 3.2 s", NOT_POLLED),
    ("paused", loop(activity=Activity.PAUSED), None, "loop 'mail' is paused", None),
    ("draining", loop(activity=Activity.DRAINING), None, "loop 'mail' is draining", None),
    ("degraded", DEGRADED, None, "loop 'mail': its mailbox has been unavailable for 12.3 s", None),
    ("one-degraded", ONE_DEGRADED, None, "loop 'mail': its mailbox has been unavailable for 4.0 s", None),
    ("stalled", STALLED, None, "loop 'mail' is stalled: it has given no sign of life for 10.5 s", None),
    ("silent", silent(10.0), None, "loop 'mail' is stalled: it has given no sign of life for 10.0 s", None),
    ("early", silent(12.9), None, "loop 'mail' is stalled: it has given no sign of life for 12.9 s", None),
    (
        "hung",
        silent(13.0),
        "loop 'mail': worker 7 has given no sign of life for 13.0 s",
        "loop 'mail' is stalled: it has given no sign of life for 13.0 s",
        None,
    ),
    ("not-watched", loop(workers=(worker(silent_for=None),)), None, None, None),
]


def expect(answer: ProbeAnswer, reason: str | None) -> None:
    assert answer.reasons == (() if reason is None else (reason,))
    assert answer.ok == (reason is None)


by_case = pytest.mark.parametrize(
    ("status", "not_live", "not_ready", "not_started"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)


@by_case
def test_live_says_whether_progress_is_made(
    status: HealthStatus, not_live: str | None, not_ready: str | None, not_started: str | None
) -> None:
    expect(judge(Probe.LIVE, status), not_live)


@by_case
def test_ready_says_whether_it_is_willing(
    status: HealthStatus, not_live: str | None, not_ready: str | None, not_started: str | None
) -> None:
    expect(judge(Probe.READY, status), not_ready)


@by_case
def test_startup_says_whether_each_loop_has_looked_for_messages(
    status: HealthStatus, not_live: str | None, not_ready: str | None, not_started: str | None
) -> None:
    expect(judge(Probe.STARTUP, status), not_started)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(silent(1e6, state=LoopState.STOPPING), id="stopping"),
        pytest.param(silent(1e6, state=LoopState.FAILED), id="failed"),
        pytest.param(loop(activity=Activity.PAUSED, workers=(worker(silent_for=1e6),)), id="paused"),
        pytest.param(loop(workers=(worker(silent_for=1e6, activity=Activity.PAUSED),)), id="worker-paused"),
        pytest.param(loop(workers=(worker(silent_for=1e6, activity=Activity.DEGRADED),)), id="worker-degraded"),
    ],
)
def test_silence_that_has_another_reason_does_not_make_it_dead(status: HealthStatus) -> None:
    expect(judge(Probe.LIVE, status), None)


def test_a_mailbox_that_is_unavailable_for_one_worker_does_not_excuse_another_that_hangs() -> None:
    workers = (worker(7, activity=Activity.DEGRADED, activity_since=NOW), worker(8, silent_for=13.0))

    answer = judge(Probe.LIVE, loop(activity=Activity.DEGRADED, activity_since=NOW, workers=workers))

    assert answer.reasons == ("loop 'mail': worker 8 has given no sign of life for 13.0 s",)


def test_a_mailbox_that_is_unavailable_since_an_unknown_time_is_unavailable() -> None:
    expect(
        judge(Probe.READY, loop(activity=Activity.DEGRADED)), "loop 'mail': its mailbox has been unavailable for 0.0 s"
    )


def test_probe_judges_a_loop_by_its_own_policy() -> None:
    patient = {"mail": StallPolicy(threshold=100.0)}

    expect(judge(Probe.LIVE, silent(129.9), policies=patient), None)
    assert not judge(Probe.LIVE, silent(130.0), policies=patient).ok
    assert not judge(Probe.LIVE, silent(13.0), policies={"resize": StallPolicy(threshold=100.0)}).ok


@pytest.mark.parametrize("probe", Probe)
def test_probe_succeeds_if_there_are_no_loops(probe: Probe) -> None:
    assert judge(probe) == ProbeAnswer(probe=probe, ok=True, reasons=(), loops=0)


@pytest.mark.parametrize(("probe", "reasons"), [("live", ()), ("ready", ("it is shutting down",)), ("startup", ())])
def test_a_shutdown_only_makes_it_unready(probe: str, reasons: Sequence[str]) -> None:
    assert judge(Probe(probe), silent(1e6, state=LoopState.STOPPED), is_closing=True).reasons == reasons
    assert judge(Probe.LIVE, silent(1e6), is_closing=True).ok


@pytest.mark.parametrize(
    ("probe", "is_closing", "ok"),
    [("live", False, True), ("ready", False, False), ("startup", False, False), ("startup", True, True)],
)
def test_loop_that_does_not_answer_is_neither_ready_nor_started_but_live(
    probe: str, is_closing: bool, ok: bool
) -> None:
    answer = judge(Probe(probe), loop(), missing=["resize"], is_closing=is_closing)

    assert answer.ok is ok
    assert answer.reasons == (() if ok else ("no answer from 'resize'",))
    assert answer.loops == 1


def test_every_loop_that_is_in_the_way_is_named_in_order() -> None:
    statuses = [loop("c", activity=Activity.PAUSED), loop("b"), loop("a", state=LoopState.STARTING)]

    assert judge(Probe.READY, *statuses, is_closing=True).reasons == (
        "it is shutting down",
        "loop 'c' is paused",
        "loop 'a' is starting",
    )


def test_probe_answer_does_not_contain_the_error_of_a_loop() -> None:
    answer = judge(Probe.READY, loop(state=LoopState.FAILED, error="Boom('password')", last_error="Boom('password')"))

    assert "password" not in str(answer)


def test_probe_answer_cannot_be_changed_and_has_a_wire_form() -> None:
    answer = judge(Probe.READY, loop())

    with pytest.raises(ValidationError):
        answer.ok = False  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  what is tested
    assert answer.model_dump(mode="json") == {"probe": "ready", "ok": True, "reasons": [], "loops": 1}
