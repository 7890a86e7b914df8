from __future__ import annotations

import itertools

import pytest

from loopwarden.testing._tape import Draw, Pct, RandomWalk, Tape, next_schedule


def test_tape_repeats_what_is_written_and_then_takes_the_first() -> None:
    tape = Tape([2, 1])

    drawn = [tape.draw([7, 8, 9], step=step, can_stay=True) for step in range(4)]

    assert drawn == tape.choices == [2, 1, 0, 0]


def test_tape_takes_the_last_of_fewer_threads_than_there_were() -> None:
    tape = Tape([5, 5])

    drawn = [tape.draw([7, 8], step=0, can_stay=False), tape.chance(3)]

    assert drawn == tape.choices == [1, 2]


def test_tape_asks_its_strategy_when_nothing_is_written_any_more() -> None:
    tape = Tape([0, 0], RandomWalk(seed=1))
    drawn = [tape.draw([1, 2, 3, 4], step=step, can_stay=True) for step in range(100)]
    drawn += [tape.chance(4) for _ in range(100)]

    again = Tape(drawn)

    assert set(drawn[2:100]) == set(drawn[100:]) == {0, 1, 2, 3}
    assert [again.draw([1, 2, 3, 4], step=step, can_stay=True) for step in range(100)] == drawn[:100]
    assert [again.chance(4) for _ in range(100)] == drawn[100:]


def test_random_walk_of_a_seed_is_the_same_each_time() -> None:
    first, second, other = RandomWalk("seed"), RandomWalk("seed"), RandomWalk("other")

    walks = [[walk.choose(range(10), step) for step in range(50)] for walk in (first, second, other)]

    assert walks[0] == walks[1] != walks[2]


def test_pct_lets_one_thread_go_on_until_a_change() -> None:
    pct = Pct(seed=3, depth=3, length=100)
    running, order = 1, [1]

    for step in range(1, 200):
        candidates = [running, *(each for each in (1, 2, 3) if each != running)]
        running = candidates[pct.choose(candidates, step)]
        order.append(running)

    stretches = [thread for thread, _ in itertools.groupby(order)]
    assert 2 <= len(stretches) <= 4


def test_pct_makes_each_change_although_not_every_step_has_a_choice() -> None:
    changed = 0
    for seed in range(20):
        pct = Pct(seed, depth=2, length=100)
        first = pct.choose([1, 2], 0)
        changed += pct.choose([1, 2] if first == 0 else [2, 1], 1_000) == 1

    assert changed == 20


def test_pct_draws_chances_from_its_seed() -> None:
    first, second = Pct(seed=1), Pct(seed=1)

    drawn = [first.chance(5) for _ in range(50)]

    assert drawn == [second.chance(5) for _ in range(50)]
    assert set(drawn) == set(range(5))


@pytest.mark.parametrize(("preemptions", "expected"), [(0, 1), (1, 4), (2, 7), (3, 8)])
def test_next_schedule_comes_to_every_order_with_so_many_interruptions_once(preemptions: int, expected: int) -> None:
    seen: set[tuple[int, ...]] = set()
    choices: list[int] | None = []

    while choices is not None:
        tape = Tape(choices)
        for step in range(3):
            tape.draw([1, 2], step=step, can_stay=True)
        assert tuple(tape.choices) not in seen
        seen.add(tuple(tape.choices))
        choices = next_schedule(tape.draws, preemptions)

    assert len(seen) == expected
    assert max(map(sum, seen)) == preemptions


def test_next_schedule_does_not_count_who_goes_on_after_one_that_cannot() -> None:
    draws = [Draw(0, 3, preempts=False)]

    assert next_schedule(draws, preemptions=0) == [1]
    assert next_schedule([Draw(2, 3, preempts=False)], preemptions=0) is None
