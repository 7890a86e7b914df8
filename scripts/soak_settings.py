"""What a soak is told in the environment."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SCENARIOS", "SELF_TESTS", "BadVariableError", "Settings", "read_settings"]

#: What runs do, in turn.
SCENARIOS = ("must-time-out", "mostly-succeed", "signals", "kill")
#: Run only if SCENARIO asks for it: a run that never ends, which the guard must find.
SELF_TESTS = ("hang",)


class BadVariableError(ValueError):
    """A variable of the environment has a value that cannot be used."""


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """All of them, checked; times are in seconds."""

    #: RUNS, 20: how often.
    runs: int
    #: CONCURRENCY, 8: workers of the pool, workers of each loop beside it, and loops of a tree.
    concurrency: int
    #: DEADLINE_MS_MUST_TIMEOUT, 20, and JOB_MS_MUST_TIMEOUT, 60: jobs that take longer than they may.
    must_time_out_deadline: float
    must_time_out_job: float
    #: DEADLINE_MS_MOSTLY_SUCCEED, 1000, and JOB_MS_MOSTLY_SUCCEED, 10: jobs that have time enough.
    mostly_succeed_deadline: float
    mostly_succeed_job: float
    #: TIMEOUT_PER_RUN, 30 seconds: a run that takes longer hangs.
    timeout_per_run: float
    #: SEED: of the first run; each next one has the next. Drawn if it is not given.
    seed: int
    #: SCENARIO: one of them for all runs; if it is not given they take turns.
    scenarios: tuple[str, ...]


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return what the environment says.

    Raises:
        BadVariableError: if a variable cannot be used; it names the variable.
    """
    settings = Settings(
        runs=_whole(environment, "RUNS", 20),
        concurrency=_whole(environment, "CONCURRENCY", 8),
        must_time_out_deadline=_whole(environment, "DEADLINE_MS_MUST_TIMEOUT", 20) / 1_000,
        must_time_out_job=_whole(environment, "JOB_MS_MUST_TIMEOUT", 60) / 1_000,
        mostly_succeed_deadline=_whole(environment, "DEADLINE_MS_MOSTLY_SUCCEED", 1_000) / 1_000,
        mostly_succeed_job=_whole(environment, "JOB_MS_MOSTLY_SUCCEED", 10) / 1_000,
        timeout_per_run=_seconds(environment, "TIMEOUT_PER_RUN", 30.0),
        seed=_whole(environment, "SEED", random.SystemRandom().randrange(1_000_000), least=0),
        scenarios=_scenarios(environment),
    )
    if settings.must_time_out_job <= settings.must_time_out_deadline:
        raise BadVariableError(
            "JOB_MS_MUST_TIMEOUT must be more than DEADLINE_MS_MUST_TIMEOUT, or nothing would have to time out,"
            f" got {settings.must_time_out_job * 1_000:g} and {settings.must_time_out_deadline * 1_000:g}"
        )
    if settings.mostly_succeed_job >= settings.mostly_succeed_deadline:
        raise BadVariableError(
            "JOB_MS_MOSTLY_SUCCEED must be less than DEADLINE_MS_MOSTLY_SUCCEED, or hardly anything would succeed,"
            f" got {settings.mostly_succeed_job * 1_000:g} and {settings.mostly_succeed_deadline * 1_000:g}"
        )
    return settings


def _whole(environment: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise BadVariableError(f"{name} must be a whole number from {least} on, got {text!r}")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadVariableError(f"{name} must be a number of seconds, more than 0, got {text!r}")
    return seconds


def _scenarios(environment: Mapping[str, str]) -> tuple[str, ...]:
    chosen = environment.get("SCENARIO")
    if chosen is None:
        return SCENARIOS
    if chosen not in (*SCENARIOS, *SELF_TESTS):
        raise BadVariableError(f"SCENARIO must be one of {', '.join((*SCENARIOS, *SELF_TESTS))}, got {chosen!r}")
    return (chosen,)
