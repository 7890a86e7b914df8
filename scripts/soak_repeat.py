"""Repeats runs, each in processes of its own, checks what they come to, and ends with 1 at the first that fails.

The scenarios:

- ``must-time-out``: jobs in an `OffloadPool` that take longer than their deadline; every ticket says so, every job runs
  once, and the pool is idle at the end.
- ``mostly-succeed``: jobs with time enough, of which nine of ten succeed; and some that take as long as they may.
- ``signals``: a tree of loops on SQLite whose handlers work, fail, crash and stall; SIGTERM or SIGINT, or two of them,
  at any moment.
- ``kill``: the same, killed with SIGKILL, and continued on the same file by others until nothing is left.
- ``hang``: only if it is asked for: never ends, to see that the guard finds it.

After each of the trees the books are checked: what was sent is acknowledged, in a mailbox or a dead letter.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from soak_books import SUCCEEDED, TIMED_OUT, Life, PoolFacts, TreeFacts, judge_books, judge_life, judge_pool
from soak_guard import FailedRunError, Guarded
from soak_post import Post
from soak_run import TELLS
from soak_settings import BadVariableError, Settings, read_settings
from soak_tree import TreePlan

from loopwarden import ExitCode
from loopwarden.errors import MailboxConnectionError

if TYPE_CHECKING:
    from soak_books import Stock

#: Messages before a tree is started, and with each batch while it runs.
FIRST, BATCH = 150, 15
#: Seconds between two batches, the longest that a tree runs before its end, and the longest between two signals.
PACE, LONGEST_LIFE, LONGEST_GAP = 0.04, 2.0, 0.4
#: How long messages are leased: longer than any run, or shorter than a process takes to be replaced.
LONG_LEASE, SHORT_LEASE = 600.0, 1.0
#: The zombies that a process bears, and more than that.
FEW_STALLS, MANY_STALLS = 3, 9
#: How many restarts a tree bears that is meant to give up.
FRAIL = 3


@final
@dataclass(slots=True)
class Run:
    """One run, its processes one after the other."""

    settings: Settings
    scenario: str
    seed: int
    folder: Path
    dice: random.Random
    deadline: float
    counts: Counter[str] = field(default_factory=Counter[str])
    lives: list[Life] = field(default_factory=list[Life])

    def start(self, plan: TreePlan | None = None) -> Guarded:
        """Start the next process."""
        number = len(self.lives) + 1
        arguments = [self.scenario, str(self.seed + number), str(self.folder), json.dumps(plan and asdict(plan))]
        here = self.folder / f"process-{number}"
        return Guarded(arguments, here, self.deadline, checks_locks=self.dice.random() < 0.5)

    def note(self, process: Guarded, *allowed: int) -> None:
        """Wait for the end of a process with a tree, and judge it."""
        code = process.finish()
        tells = process.read(TELLS)
        facts = TreeFacts.model_validate_json(tells) if tells else None
        life = Life(code=code, allowed=frozenset(allowed), stderr=process.read("stderr"), facts=facts)
        self.lives.append(life)
        _check(judge_life(life))

    def do(self) -> str:
        """Do what the scenario says; return what came of it.

        Raises:
            FailedRunError: if it is not what it should be.
        """
        if self.scenario == "signals":
            return self._signals()
        if self.scenario == "kill":
            return self._kill()
        return self._pool()

    def _pool(self) -> str:
        with self.start() as process:
            code, errors = process.finish(), process.read("stderr")
            if code != 0 or errors:
                raise FailedRunError(f"it ended with code {code}, and wrote to standard error:\n{errors}")
            facts = PoolFacts.model_validate_json(process.read(TELLS))
        _check(judge_pool(self.scenario, facts))
        outcomes = Counter(facts.outcomes)
        self.counts.update(jobs=sum(facts.runs.values()), late=facts.late)
        races = f"; races: {facts.races.get(SUCCEEDED, 0)} in time, {facts.races.get(TIMED_OUT, 0)} not"
        return (
            f"{facts.sent} jobs: {outcomes[SUCCEEDED]} in time, {outcomes[TIMED_OUT]} timed out,"
            f" {facts.late} late{races if facts.races else ''}"
        )

    def _signals(self) -> str:
        stalls = self.dice.choice((0, 1, 2, FEW_STALLS, FEW_STALLS, MANY_STALLS))
        intensity = FRAIL if self.dice.random() < 0.15 else None
        numbers = self.dice.choices((signal.SIGTERM, signal.SIGINT), k=self.dice.choice((1, 1, 2)))
        allowed = [ExitCode.OK, ExitCode.DRAIN_TIMED_OUT]
        if intensity is not None:
            allowed.append(ExitCode.GAVE_UP)
        if stalls == MANY_STALLS or len(numbers) > 1:  # a worker cut short with a message in hand is a zombie too
            allowed.append(ExitCode.TOO_MANY_ZOMBIES)
        with Post(self.folder, self.dice, stalls) as post:
            with self._live(post, TreePlan(self._loops, LONG_LEASE, intensity, self._flip())) as process:
                for number in numbers:
                    process.send(number)
                    process.pause(self.dice.uniform(0, LONGEST_GAP))
                self.note(process, *allowed)
            return self._balance(post.take_stock(), "+".join(number.name for number in numbers))

    def _kill(self) -> str:
        plan = TreePlan(self._loops, SHORT_LEASE, None, self._flip())
        kills = self.dice.choice((1, 1, 2, 3))
        with Post(self.folder, self.dice, FEW_STALLS) as post:
            for _ in range(kills):
                with self._live(post, plan) as process:
                    process.send(signal.SIGKILL)
                    self.note(process, -signal.SIGKILL)
            with self._live(post, plan) as process:
                process.wait_until(lambda: post.is_all_done)
                process.send(signal.SIGTERM)
                self.note(process, ExitCode.OK)
            stock = post.take_stock()
            if stock.left:
                raise FailedRunError(f"{len(stock.left)} messages are left where there were none")
            return self._balance(stock, f"{kills} x SIGKILL, then SIGTERM")

    @property
    def _loops(self) -> int:
        return self.settings.concurrency

    def _flip(self) -> bool:
        return self.dice.random() < 0.5

    def _live(self, post: Post, plan: TreePlan) -> Guarded:
        """Start a process and feed it up to a moment that is drawn."""
        post.send(FIRST)
        process = self.start(plan)
        try:
            process.wait_until(lambda: process.is_ready)
            until = time.monotonic() + self.dice.uniform(0, LONGEST_LIFE)
            while not process.has_ended and (left := until - time.monotonic()) > 0:
                process.pause(min(PACE, left))
                post.send(BATCH)
        except MailboxConnectionError as error:  # after half a minute, so a process keeps the file locked
            raise process.hung(str(error)) from error
        except BaseException:
            process.close()
            raise
        return process

    def _balance(self, stock: Stock, how: str) -> str:
        _check(judge_books(stock, self.lives))
        acknowledged, again = len(stock.acknowledged), len(stock.completed) - len(set(stock.completed))
        counts = {"sent": len(stock.sent), "acknowledged": acknowledged, "left": len(stock.left)}
        self.counts.update({**counts, "dead": len(stock.dead), "processes": len(self.lives)})
        self.counts.update(f"code {life.code}" for life in self.lives)
        most = max((life.facts.busiest for life in self.lives if life.facts), default=0)
        return (
            f"{how}, code {self.lives[-1].code}; {len(stock.sent)} sent = {acknowledged} acknowledged"
            f" + {len(stock.left)} left + {len(stock.dead)} dead; {again} completed again, budget {most} at most"
        )


def _check(faults: list[str]) -> None:
    if faults:
        raise FailedRunError("\n".join(faults))


def _changed() -> str:
    """Return the variables of the environment that a repetition needs too."""
    names = [name for name in os.environ if name.startswith(("DEADLINE_MS_", "JOB_MS_"))]
    return "".join(
        f"{name}={os.environ[name]} " for name in [*names, "CONCURRENCY", "TIMEOUT_PER_RUN"] if name in os.environ
    )


def soak(settings: Settings) -> int:
    """Do all runs; return the exit code."""
    print(f"soak: {settings.runs} runs, SEED={settings.seed}, CONCURRENCY={settings.concurrency}", flush=True)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    for number in range(1, settings.runs + 1):
        scenario = settings.scenarios[(number - 1) % len(settings.scenarios)]
        seed = settings.seed + number - 1
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        started = time.monotonic()
        deadline = started + settings.timeout_per_run
        run = Run(settings, scenario, seed, folder, random.Random(seed), deadline)
        head = f"run {number} of {settings.runs}: {scenario}, seed {seed}"
        try:
            text = run.do()
        except FailedRunError as error:
            again = f"{_changed()}SEED={seed} SCENARIO={scenario} RUNS=1 scripts/soak"
            print(f"{head}: FAILED\n{error}\nonce more: {again}\nits files: {folder}", flush=True)
            return 1
        shutil.rmtree(folder)
        print(f"{head}, {time.monotonic() - started:.2f} s: {text}", flush=True)
        counts += run.counts
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"soak: all {settings.runs} runs are good, {time.monotonic() - began:.1f} s: {told}", flush=True)
    return 0


def main() -> int:
    """Read the environment, and soak."""
    try:
        settings = read_settings(os.environ)
    except BadVariableError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    # Both leave through the blocks that kill what was started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return soak(settings)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
