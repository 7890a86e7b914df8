"""`interleavings`: one test, many orders; and a failure that can be repeated, made short, and told."""

from __future__ import annotations

import functools
import inspect
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, final

from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.testing import _hang_guard
from loopwarden.testing._crash import SimulatedCrash
from loopwarden.testing._hang_guard import HangError
from loopwarden.testing._simulation import MAX_STEPS, Simulation
from loopwarden.testing._tape import next_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Exploration", "explore", "interleavings"]

F = TypeVar("F", bound="Callable[..., None]")

#: Runs, and real seconds, that are spent on making a failure short.
SHRINK_RUNS = 400
SHRINK_SECONDS = 20.0
#: What a test calls the simulation that it is given.
_PARAMETER = "simulation"
#: Fixtures of the pytest plugin: each is made once, in a time of its own, and not in the simulation of each run.
_FIXTURES = {
    "warden": "Supervisor.open(...)",
    "mailbox": "FaultyMailbox(open_mailbox(...))",
    "probe": "Probe()",
    "fake_clock": "simulation",
}
#: What every thread does; a thread that does nothing else cannot be interrupted.
_BARE_LIFE = {"begins", "ends", "starts", "waits for the end of"}


@final
@dataclass(frozen=True, slots=True)
class Exploration:
    """How many orders were tried, and whether these were all that there are."""

    schedules: int
    is_complete: bool


def interleavings(
    runs: int = 200,
    *,
    seeds: Iterable[int] | None = None,
    preemptions: int | None = None,
    tape: Sequence[int] | None = None,
    strategy: Literal["random", "pct"] = "random",
) -> Callable[[F], F]:
    """Run a test in many orders, each in a `Simulation` of its own, which it gets as ``simulation`` if it asks for it.

    The first order that fails is run again to see whether it can be repeated, made as short as possible, and told in
    words with what to write to repeat it. One that takes longer than a real minute, or than the setting
    ``loopwarden_hang_timeout`` of pytest, is ended by a `HangError`, see `hang_guard`.

    Args:
        runs: How many; the seeds are 0, 1, 2 and so on.
        seeds: These seeds instead.
        preemptions: Instead of drawing, every order in which threads that could go on are interrupted at most that
            many times, up to ``runs`` of them.
        tape: This order alone, as a failure has told it, with the first of ``seeds`` for what else is drawn.
        strategy: How to draw, see `Simulation`.

    Raises:
        TypeError: if it is written without brackets, or asks for fixtures that are not made in each run.

    Warns:
        UserWarning: if in none of the runs a thread could be interrupted.
    """
    if callable(runs):
        raise TypeError("write @interleavings(), with brackets")

    def decorate(test: F) -> F:
        parameters = inspect.signature(test).parameters
        takes_simulation = _PARAMETER in parameters
        if asked := [name for name in _FIXTURES if name in parameters]:
            advice = ", ".join(_FIXTURES[name] for name in asked)
            raise TypeError(
                f"@interleavings runs {test.__name__} many times, but its parameters {', '.join(asked)} would be made "
                f"once: make them in the test, by {advice} (a fixture of your own needs another name)"
            )

        @functools.wraps(test)
        def run_all(*args: Any, **kwargs: Any) -> None:
            orders, is_race = 0, False

            def body(simulation: Simulation) -> None:
                nonlocal orders, is_race
                orders += 1
                test(*args, **kwargs, **({_PARAMETER: simulation} if takes_simulation else {}))
                is_race = is_race or _is_race(simulation)

            if preemptions is not None:
                explore(body, preemptions=preemptions, limit=runs)
            else:
                for simulation in _simulations(runs, seeds, tape, strategy):
                    _attempt(body, simulation)
            if orders > 1 and not is_race:
                text = (
                    f"{orders} orders were tried, but no thread could be interrupted: what races here does not use the "
                    "seam (current_clock().blocking)"
                )
                warnings.warn(text, UserWarning, stacklevel=2)

        kept = [each for name, each in parameters.items() if name != _PARAMETER]
        wrapped = cast("Any", run_all)  # it is called as the test is, but without the simulation
        wrapped.__signature__ = inspect.Signature(kept)  # what pytest looks at for fixtures
        return cast("F", wrapped)

    return decorate


def _is_race(simulation: Simulation) -> bool:
    """Say whether there were threads, and one did something where another could have gone on; or whether it drew."""
    scheduler = simulation.scheduler
    if simulation.has_rolled_dice or scheduler.tape.has_chances:
        return True
    others = (task is not scheduler.main for task, _, _, _ in scheduler.trace)
    return any(others) and any(verb not in _BARE_LIFE for _, verb, _, _ in scheduler.trace)


def _simulations(
    runs: int, seeds: Iterable[int] | None, tape: Sequence[int] | None, strategy: Literal["random", "pct"]
) -> Iterator[Simulation]:
    if tape is not None:
        yield Simulation(0 if seeds is None else next(iter(seeds)), tape=tape)
        return
    for seed in range(runs) if seeds is None else seeds:
        yield Simulation(seed, strategy=strategy)


def explore(body: Callable[[Simulation], None], *, preemptions: int, limit: int = 10_000) -> Exploration:
    """Run ``body`` in every order with at most that many pre-emptions, up to ``limit`` of them.

    Raises:
        BaseException: what the first order that fails raises, with its story.
    """
    choices: list[int] | None = []
    for schedule in range(limit):
        simulation = Simulation(tape=choices)
        _attempt(body, simulation)
        choices = next_schedule(simulation.scheduler.tape.draws, preemptions)
        if choices is None:
            return Exploration(schedule + 1, is_complete=True)
    return Exploration(limit, is_complete=False)


def _attempt(body: Callable[[Simulation], None], simulation: Simulation) -> None:
    try:
        _once(body, simulation)
    except HangError:
        raise  # it would only hang another time
    except BaseException as error:
        if _is_failure(error):
            error.add_note(_explain(body, simulation, error))
        raise


def _once(body: Callable[[Simulation], None], simulation: Simulation) -> None:
    with _hang_guard.hang_guard(_hang_guard.limit), simulation:
        body(simulation)


def _is_failure(error: BaseException) -> bool:
    # By name: what pytest raises for a failure is no Exception either, and we do not need pytest.
    return isinstance(error, Exception | SimulatedCrash) or type(error).__name__ == "Failed"


def _explain(body: Callable[[Simulation], None], failed: Simulation, error: BaseException) -> str:
    again, raised = _run(body, failed.tape, failed.seed)
    if type(raised) is not type(error) or again.scheduler.digest != failed.scheduler.digest:
        what = "raised nothing" if raised is None else f"raised {raised!r}"
        return (
            f"in the simulation of seed {failed.seed!r}. It could not be repeated: the same choices {what} after "
            f"{again.steps} instead of {failed.steps} steps, so something in the test depends on more than them.\n"
            f"{failed.story()}"
        )
    short = _shrink(body, failed, type(error))
    told, _ = _run(body, short, failed.seed)
    seeds = f", seeds=[{failed.seed!r}]" if told.has_rolled_dice and failed.seed != 0 else ""
    return (
        f"in the simulation of seed {failed.seed!r}, each time that it is repeated. The shortest order that fails, "
        f"{len(short)} choices instead of {len(failed.tape)}:\n{told.story()}\nTo repeat it:\n"
        f"    @interleavings(tape={short}{seeds})"
    )


def _run(
    body: Callable[[Simulation], None], tape: Sequence[int], seed: int | str, max_steps: int = MAX_STEPS
) -> tuple[Simulation, BaseException | None]:
    simulation = Simulation(seed, tape=tape, max_steps=max_steps)
    try:
        _once(body, simulation)
    except BaseException as error:
        if not _is_failure(error):
            raise
        return simulation, error  # it is what we look for
    return simulation, None


def _shrink(body: Callable[[Simulation], None], failed: Simulation, kind: type[BaseException]) -> list[int]:
    """Return the shortest tape found that still fails like this, with as many zeros as possible."""
    deadline = SYSTEM_CLOCK.monotonic() + SHRINK_SECONDS
    left = SHRINK_RUNS

    def fails(candidate: list[int]) -> bool:
        nonlocal left
        if left <= 0 or SYSTEM_CLOCK.monotonic() > deadline:
            return False
        left -= 1
        # A tape without interruptions may never end, if a thread waits for another without the seam.
        return type(_run(body, candidate, failed.seed, max_steps=1_000 + 20 * failed.steps)[1]) is kind

    best = _stripped(failed.tape)
    while len(best) > 1 and fails(best[: len(best) // 2]):
        best = _stripped(best[: len(best) // 2])
    size = max(1, len(best) // 2)
    while size:
        position = 0
        while position < len(best):
            zeroed = [*best[:position], *[0] * len(best[position : position + size]), *best[position + size :]]
            if any(best[position : position + size]) and fails(zeroed):
                best = _stripped(zeroed)
            position += size
        size //= 2
    return best


def _stripped(tape: list[int]) -> list[int]:
    """Return a tape without the zeros at its end, which say nothing."""
    end = len(tape)
    while end and tape[end - 1] == 0:
        end -= 1
    return tape[:end]
