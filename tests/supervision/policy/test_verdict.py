from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden.errors import LoopAbandonedError, SupervisorGaveUp
from loopwarden.supervision.policy._restart import ChildExit, ExitReason, Verdict, exit_of, judge

if TYPE_CHECKING:
    from loopwarden.supervision.tree._spec import Decision, Restart

R, V = ExitReason, Verdict


@pytest.mark.parametrize(
    ("restart", "reason", "expected"),
    [
        pytest.param("permanent", R.NORMAL, V.RESTART, id="permanent-normal"),
        pytest.param("permanent", R.SHUTDOWN, V.RESTART, id="permanent-shutdown"),
        pytest.param("permanent", R.ERROR, V.RESTART, id="permanent-error"),
        pytest.param("permanent", R.KILLED, V.RESTART, id="permanent-killed"),
        pytest.param("transient", R.NORMAL, V.KEEP, id="transient-normal"),
        pytest.param("transient", R.SHUTDOWN, V.KEEP, id="transient-shutdown"),
        pytest.param("transient", R.ERROR, V.RESTART, id="transient-error"),
        pytest.param("transient", R.KILLED, V.RESTART, id="transient-killed"),
        pytest.param("temporary", R.NORMAL, V.DROP, id="temporary-normal"),
        pytest.param("temporary", R.SHUTDOWN, V.DROP, id="temporary-shutdown"),
        pytest.param("temporary", R.ERROR, V.DROP, id="temporary-error"),
        pytest.param("temporary", R.KILLED, V.DROP, id="temporary-killed"),
    ],
)
def test_a_verdict_follows_from_restart_type_and_reason(
    restart: Restart, reason: ExitReason, expected: Verdict
) -> None:
    assert judge(restart, ChildExit(reason), {}) is expected


@pytest.mark.parametrize(
    ("restart", "decision", "expected"),
    [
        pytest.param("permanent", "restart", V.RESTART, id="permanent-restart"),
        pytest.param("permanent", "stop", V.KEEP, id="permanent-stop"),
        pytest.param("permanent", "escalate", V.ESCALATE, id="permanent-escalate"),
        pytest.param("transient", "restart", V.RESTART, id="transient-restart"),
        pytest.param("transient", "stop", V.KEEP, id="transient-stop"),
        pytest.param("transient", "escalate", V.ESCALATE, id="transient-escalate"),
        pytest.param("temporary", "restart", V.DROP, id="temporary-restart"),
        pytest.param("temporary", "stop", V.DROP, id="temporary-stop"),
        pytest.param("temporary", "escalate", V.ESCALATE, id="temporary-escalate"),
    ],
)
def test_judge_lets_the_decision_about_an_error_come_first(
    restart: Restart, decision: Decision, expected: Verdict
) -> None:
    ended = ChildExit(R.ERROR, KeyError("k"))

    assert judge(restart, ended, {KeyError: decision}) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(KeyError("k"), V.KEEP, id="the-class-itself"),
        pytest.param(IndexError("i"), V.ESCALATE, id="the-nearest-base"),
        pytest.param(ValueError("v"), V.RESTART, id="a-farther-base"),
        pytest.param(SystemExit(), V.RESTART, id="no-base"),
    ],
)
def test_judge_goes_by_the_nearest_class(error: BaseException, expected: Verdict) -> None:
    decide: dict[type[BaseException], Decision] = {Exception: "restart", LookupError: "escalate", KeyError: "stop"}

    assert judge("permanent", ChildExit(R.ERROR, error), decide) is expected


def test_an_end_without_an_error_is_not_decided_by_class() -> None:
    assert judge("permanent", ChildExit(R.NORMAL), {BaseException: "stop"}) is V.RESTART


def test_restart_does_not_restart_what_its_type_keeps_down() -> None:
    ended = exit_of(SupervisorGaveUp("inner", "x", "failed too often"), asked=False)

    assert judge("transient", ended, {SupervisorGaveUp: "restart"}) is V.KEEP


@pytest.mark.parametrize(
    ("cause", "asked", "reason"),
    [
        pytest.param(None, False, R.NORMAL, id="returned"),
        pytest.param(None, True, R.SHUTDOWN, id="returned-when-asked"),
        pytest.param(KeyError("k"), False, R.ERROR, id="raised"),
        pytest.param(KeyError("k"), True, R.ERROR, id="raised-when-asked"),
        pytest.param(KeyboardInterrupt(), False, R.ERROR, id="raised-no-exception"),
        pytest.param(LoopAbandonedError("loop"), False, R.KILLED, id="abandoned"),
        pytest.param(LoopAbandonedError("loop"), True, R.KILLED, id="abandoned-when-asked"),
        pytest.param(SupervisorGaveUp("s", "c", "why"), False, R.SHUTDOWN, id="gave-up"),
        pytest.param(SupervisorGaveUp("s", "c", "why"), True, R.SHUTDOWN, id="gave-up-when-asked"),
    ],
)
def test_a_reason_follows_from_the_cause(cause: BaseException | None, asked: bool, reason: ExitReason) -> None:
    assert exit_of(cause, asked=asked) == ChildExit(reason, cause, asked)


@pytest.mark.parametrize(
    ("reason", "expected"), [(R.NORMAL, True), (R.SHUTDOWN, True), (R.ERROR, False), (R.KILLED, False)], ids=str
)
def test_a_reason_is_normal(reason: ExitReason, expected: bool) -> None:
    assert reason.is_normal is expected
