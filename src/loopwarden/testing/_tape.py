"""`Tape`: every choice of a simulation, in order, so that it can be repeated, saved and shrunk."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Draw", "Pct", "RandomWalk", "Strategy", "Tape", "next_schedule"]


#: From the race of two threads to a system that runs for hours.
_LENGTHS = (20, 100, 500, 2_500, 12_500)


class Strategy(Protocol):
    """Decides what is not on the tape yet."""

    def choose(self, candidates: Sequence[int], step: int) -> int:
        """Return the index of one of ``candidates``, which are numbers of threads; the first is the one that runs."""
        ...

    def chance(self, options: int) -> int:
        """Return a number below ``options``, for what has nothing to do with threads."""
        ...


@final
class RandomWalk:
    """Lets any thread that can go on go on, with the same odds."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed).random  # noqa: S311  an order that can be repeated, no secret

    def choose(self, candidates: Sequence[int], step: int) -> int:
        """Return any of them."""
        del step
        return int(self._random() * len(candidates))

    def chance(self, options: int) -> int:
        """Return any of them."""
        return int(self._random() * options)


@final
class Pct:
    """Probabilistic concurrency testing: threads have priorities, which change ``depth - 1`` times in a run.

    It is made for long runs with few switches that matter.

    Args:
        seed: The same seed gives the same choices.
        depth: How many steps must come in the right order for what is looked for.
        length: About how many steps a run has; drawn too if it is not known, so that some seeds fit any run.
    """

    def __init__(self, seed: int | str, depth: int = 3, length: int | None = None) -> None:
        self._dice = random.Random(seed)  # noqa: S311  as above
        if length is None:
            length = self._dice.choice(_LENGTHS)
        # The next one last. Not every step has a choice: one that is passed over counts at the next choice.
        self._changes = sorted((self._dice.randrange(length) for _ in range(depth - 1)), reverse=True)
        self._lowest = 0.0
        self._priorities: dict[int, float] = {}

    def choose(self, candidates: Sequence[int], step: int) -> int:
        """Return the one with the highest priority."""
        for each in candidates:
            if each not in self._priorities:
                self._priorities[each] = self._dice.random()
        while self._changes and step >= self._changes[-1]:
            self._changes.pop()
            self._lowest -= 1.0
            self._priorities[candidates[0]] = self._lowest
        return max(range(len(candidates)), key=lambda index: self._priorities[candidates[index]])

    def chance(self, options: int) -> int:
        """Return any of them."""
        return self._dice.randrange(options)


@final
class Draw:
    """One choice that was made: which of how many, and whether any but the first is a pre-emption."""

    __slots__ = ("choice", "options", "preempts")

    def __init__(self, choice: int, options: int, *, preempts: bool) -> None:
        self.choice = choice
        self.options = options
        self.preempts = preempts


@final
class Tape:
    """Choices: first those that were written before, then as a strategy has it, or always the first.

    The first choice is always the one that changes nothing: the thread that runs goes on, nothing crashes. So the
    shortest tape, and the one with the most zeros, is the simplest story.

    >>> tape = Tape([1, 0, 2])
    >>> [tape.draw([10, 11, 12], step=n, can_stay=True) for n in range(4)]
    [1, 0, 2, 0]
    >>> tape.choices
    [1, 0, 2, 0]
    """

    def __init__(self, choices: Iterable[int] = (), strategy: Strategy | None = None) -> None:
        self._written = list(choices)
        self._strategy = strategy
        #: What was drawn.
        self.draws: list[Draw] = []
        #: Whether something was drawn that has nothing to do with threads.
        self.has_chances = False

    @property
    def choices(self) -> list[int]:
        """What was drawn, as numbers: a tape for the next run."""
        return [draw.choice for draw in self.draws]

    def draw(self, candidates: Sequence[int], *, step: int, can_stay: bool) -> int:
        """Return the index of the thread that goes on.

        Args:
            candidates: Numbers of threads.
            step: How many steps there were.
            can_stay: Whether the first of them runs, and could go on.
        """
        position = len(self.draws)
        if position < len(self._written):
            choice = min(self._written[position], len(candidates) - 1)
        elif self._strategy is not None:
            choice = self._strategy.choose(candidates, step)
        else:
            choice = 0
        self.draws.append(Draw(choice, len(candidates), preempts=can_stay))
        return choice

    def chance(self, options: int) -> int:
        """Return a number below ``options``: 0 if nothing is to happen."""
        self.has_chances = True
        position = len(self.draws)
        if position < len(self._written):
            choice = min(self._written[position], options - 1)
        elif self._strategy is not None:
            choice = self._strategy.chance(options)
        else:
            choice = 0
        self.draws.append(Draw(choice, options, preempts=True))
        return choice


def next_schedule(draws: Sequence[Draw], preemptions: int) -> list[int] | None:
    """Return the tape of the next schedule with at most that many pre-emptions, the last choice first; None at the end.

    >>> next_schedule([Draw(0, 2, preempts=True), Draw(1, 2, preempts=False)], preemptions=1)
    [1]
    >>> next_schedule([Draw(1, 2, preempts=True), Draw(0, 2, preempts=True)], preemptions=1)
    """
    used = 0
    before: list[int] = []
    for draw in draws:
        before.append(used)
        used += draw.preempts and draw.choice > 0
    for position in reversed(range(len(draws))):
        draw = draws[position]
        if draw.choice + 1 < draw.options and (not draw.preempts or before[position] < preemptions):
            return [*(each.choice for each in draws[:position]), draw.choice + 1]
    return None
