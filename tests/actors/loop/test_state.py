from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden._blocking import SYSTEM
from loopwarden.actors import LoopState
from loopwarden.actors.loop._state import Lifecycle, LifeEvent, next_state

S, E = LoopState, LifeEvent


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        (S.IDLE, E.START, S.STARTING),
        (S.STARTING, E.ENTER, S.RUNNING),
        (S.RUNNING, E.STOP, S.STOPPING),
        (S.STARTING, E.STOP, S.STOPPING),
        (S.IDLE, E.STOP, S.STOPPING),
        (S.STOPPING, E.START, S.STOPPING),
        (S.STOPPING, E.ENTER, S.STOPPING),
        (S.STOPPING, E.STOP, S.STOPPING),
        (S.STOPPING, E.RETURN, S.STOPPED),
        (S.STOPPING, E.CRASH, S.FAILED),
        (S.RUNNING, E.RETURN, S.STOPPED),
        (S.RUNNING, E.CRASH, S.FAILED),
        (S.RUNNING, E.START, S.RUNNING),
    ],
    ids=str,
)
def test_state_is_followed_by(state: LoopState, event: LifeEvent, expected: LoopState) -> None:
    assert next_state(state, event) is expected


@pytest.mark.parametrize("end", [S.STOPPED, S.FAILED])
@pytest.mark.parametrize("event", list(E))
def test_state_does_not_change_after_the_end(end: LoopState, event: LifeEvent) -> None:
    assert next_state(end, event) is end


@given(st.lists(st.sampled_from(list(E)), max_size=20))
def test_lifecycle_only_goes_forward_and_never_forgets_a_stop(events: list[LifeEvent]) -> None:
    lifecycle = Lifecycle(SYSTEM)
    states = [S.IDLE, *(lifecycle.move(event)[1] for event in events)]
    order = [S.IDLE, S.STARTING, S.RUNNING, S.STOPPING, S.STOPPED, S.FAILED]

    assert all(order.index(before) <= order.index(after) for before, after in pairwise(states))
    stopped_at = events.index(E.STOP) + 1 if E.STOP in events else len(states)
    assert S.RUNNING not in states[stopped_at:]
    assert lifecycle.state is states[-1]
    assert repr(lifecycle) == f"<Lifecycle, {states[-1]}>"
