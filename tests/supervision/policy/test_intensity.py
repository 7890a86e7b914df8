from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden.supervision.policy._restart import admit


def admitted(times: list[float], intensity: int | None, period: float) -> list[bool]:
    """Return which restarts are allowed, up to the first that is not."""
    verdicts: list[bool] = []
    restarts: tuple[float, ...] = ()
    for now in times:
        counted = admit(restarts, now, intensity, period)
        if counted is None:
            return [*verdicts, False]
        restarts = counted
        verdicts.append(True)
    return verdicts


@pytest.mark.parametrize(
    ("intensity", "period", "times"),
    [
        pytest.param(1, 5, [0, 6], id="1-in-5-six-apart"),
        pytest.param(3, 5, [0, 1, 2, 6, 7, 8], id="3-in-5-two-bursts"),
        pytest.param(5, 30, [7 * i for i in range(200)], id="5-in-30-every-seven"),
        pytest.param(None, 5, [0] * 200, id="for-ever"),
    ],
)
def test_restarts_that_are_few_enough_are_all_allowed(intensity: int | None, period: float, times: list[float]) -> None:
    assert all(admitted(times, intensity, period))


@pytest.mark.parametrize(
    ("intensity", "period", "times"),
    [
        pytest.param(0, 5, [0], id="0-in-5"),
        pytest.param(1, 5, [0, 5], id="1-in-5-exactly-five-apart"),
        pytest.param(3, 5, [0, 1, 2, 3], id="3-in-5-four-in-a-row"),
        pytest.param(5, 30, [0, 6, 12, 18, 24, 30], id="5-in-30-every-six"),
    ],
)
def test_admit_refuses_one_restart_too_many(intensity: int, period: float, times: list[float]) -> None:
    assert admitted(times, intensity, period) == [True] * (len(times) - 1) + [False]


def test_admit_without_an_intensity_remembers_nothing() -> None:
    assert admit((), 0.0, None, 5.0) == ()


def test_admit_forgets_restarts_that_are_too_old() -> None:
    assert admit((0.0, 1.0, 2.0), 6.5, intensity=3, period=5.0) == (2.0, 6.5)


def naive(times: list[int], intensity: int, period: int) -> list[bool]:
    """Erlang's ``add_restart``, line by line."""
    verdicts: list[bool] = []
    restarts: list[int] = []
    for now in times:
        if intensity == 0:
            return [*verdicts, False]
        kept = [t for t in restarts if t >= now - period]
        if len(kept) >= intensity:
            return [*verdicts, False]
        restarts = [now, *kept]
        verdicts.append(True)
    return verdicts


@settings(max_examples=1_000)
@given(
    gaps=st.lists(st.integers(0, 8), max_size=30),
    intensity=st.integers(0, 6),
    period=st.integers(1, 12),
)
def test_admit_judges_any_sequence_as_erlang_does(gaps: list[int], intensity: int, period: int) -> None:
    times = [sum(gaps[: i + 1]) for i in range(len(gaps))]

    assert admitted([float(t) for t in times], intensity, period) == naive(times, intensity, period)
