from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden.supervision import StallPolicy
from loopwarden.supervision.policy._stall import StallAction, next_action

if TYPE_CHECKING:
    from collections.abc import Sequence

R = StallAction
Last = Literal["report", "recall", "replace", "exit"]

STEPS: dict[Last, list[StallAction]] = {
    "report": [R.REPORT],
    "recall": [R.REPORT, R.RECALL],
    "replace": [R.REPORT, R.RECALL, R.ABANDON],
    "exit": [R.REPORT, R.RECALL, R.EXIT],
}


@pytest.mark.parametrize(
    ("last", "done", "silent_for", "expected"),
    [
        pytest.param("report", R.NONE, 9.9, R.NONE, id="report-none-early"),
        pytest.param("report", R.NONE, 10.0, R.REPORT, id="report-none-due"),
        pytest.param("report", R.REPORT, 1e9, R.NONE, id="report-reported"),
        pytest.param("recall", R.NONE, 9.9, R.NONE, id="recall-none-early"),
        pytest.param("recall", R.NONE, 10.0, R.REPORT, id="recall-none-due"),
        pytest.param("recall", R.REPORT, 10.9, R.NONE, id="recall-reported-early"),
        pytest.param("recall", R.REPORT, 11.0, R.RECALL, id="recall-reported-due"),
        pytest.param("recall", R.RECALL, 1e9, R.NONE, id="recall-recalled"),
        pytest.param("replace", R.NONE, 9.9, R.NONE, id="replace-none-early"),
        pytest.param("replace", R.NONE, 10.0, R.REPORT, id="replace-none-due"),
        pytest.param("replace", R.REPORT, 10.9, R.NONE, id="replace-reported-early"),
        pytest.param("replace", R.REPORT, 11.0, R.RECALL, id="replace-reported-due"),
        pytest.param("replace", R.RECALL, 11.9, R.NONE, id="replace-recalled-early"),
        pytest.param("replace", R.RECALL, 12.0, R.ABANDON, id="replace-recalled-due"),
        pytest.param("replace", R.ABANDON, 1e9, R.NONE, id="replace-abandoned"),
        pytest.param("exit", R.NONE, 9.9, R.NONE, id="exit-none-early"),
        pytest.param("exit", R.NONE, 10.0, R.REPORT, id="exit-none-due"),
        pytest.param("exit", R.REPORT, 10.9, R.NONE, id="exit-reported-early"),
        pytest.param("exit", R.REPORT, 11.0, R.RECALL, id="exit-reported-due"),
        pytest.param("exit", R.RECALL, 11.9, R.NONE, id="exit-recalled-early"),
        pytest.param("exit", R.RECALL, 12.0, R.EXIT, id="exit-recalled-due"),
        pytest.param("exit", R.EXIT, 1e9, R.NONE, id="exit-exited"),
    ],
)
def test_next_action_follows_from_policy_last_step_and_silence(
    last: Last, done: StallAction, silent_for: float, expected: StallAction
) -> None:
    assert next_action(done, silent_for, StallPolicy(threshold=10.0, last=last)) is expected


@pytest.mark.parametrize("last", STEPS)
def test_next_action_is_one_step_at_a_time_however_long_the_silence(last: Last) -> None:
    policy = StallPolicy(threshold=10.0, last=last)
    taken: list[StallAction] = []

    while (action := next_action(taken[-1] if taken else R.NONE, 1e9, policy)) is not R.NONE:
        taken.append(action)

    assert taken == STEPS[last]


def climb(silences: Sequence[float], policy: StallPolicy) -> list[tuple[float, StallAction]]:
    """Return the steps that are taken about one silence that is looked at as often as that."""
    taken: list[tuple[float, StallAction]] = []
    for silent_for in silences:
        action = next_action(taken[-1][1] if taken else R.NONE, silent_for, policy)
        if action is not R.NONE:
            taken.append((silent_for, action))
    return taken


@given(
    silences=st.lists(st.floats(0, 1_000), max_size=30).map(sorted),
    threshold=st.floats(0.01, 500),
    last=st.sampled_from(sorted(STEPS)),
)
def test_next_action_skips_and_repeats_no_step_and_takes_none_before_its_time(
    silences: list[float], threshold: float, last: Last
) -> None:
    policy = StallPolicy(threshold=threshold, last=last)

    taken = climb(silences, policy)

    assert [action for _, action in taken] == STEPS[last][: len(taken)]
    assert all(silent_for >= threshold + number * policy.grace for number, (silent_for, _) in enumerate(taken))


@given(looks=st.integers(3, 50), threshold=st.floats(0.01, 500), last=st.sampled_from(sorted(STEPS)))
def test_every_step_is_taken_in_the_end(looks: int, threshold: float, last: Last) -> None:
    policy = StallPolicy(threshold=threshold, last=last)

    taken = climb([2 * threshold] * looks, policy)

    assert [action for _, action in taken] == STEPS[last]


@pytest.mark.parametrize(
    "fields",
    [{"threshold": 0.0}, {"threshold": -1.0}, {"threshold": float("inf")}, {"threshold": "5"}, {"last": "kill"}],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(fields))} must be .*, got"):
        StallPolicy(**fields)
