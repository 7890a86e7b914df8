"""Locks are taken in one order, and the table of them is complete."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loopwarden._lock_order import ORDER, VIOLATIONS, CheckedLock, LockOrderError, checked

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/loopwarden", "actors", "mailbox", "supervision")


def makers() -> set[str]:
    """Return the classes, and the modules, that make a lock through the seam."""
    found: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent.is_symlink() or "testing" in path.parts:
                continue
            module = ast.parse(path.read_text(encoding="utf-8"))
            found |= {node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef) and makes_lock(node)}
            if any(makes_lock(node) for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)):
                found.add(str(path.relative_to(ROOT)))
    return found


def makes_lock(node: ast.AST) -> bool:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)]
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "lock" for call in calls)


def test_every_lock_is_in_the_table() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("| lock | guards |")[1].split("\n\n")[0]

    assert [maker for maker in sorted(makers()) if f"`{maker}" not in table] == []


def test_lock_order_has_no_pair_both_ways() -> None:
    assert {held for held, _ in ORDER} <= makers()
    assert {taken for _, taken in ORDER} <= makers()
    assert not [pair for pair in ORDER if pair[::-1] in ORDER or pair[0] == pair[1]]


def test_a_planted_inversion_is_found_whether_or_not_the_threads_meet() -> None:
    order = frozenset({("First", "Second")})
    first, second = CheckedLock(threading.Lock(), "First", order), CheckedLock(threading.Lock(), "Second", order)
    with first, second:
        pass

    with pytest.raises(LockOrderError, match="the lock of First is taken while that of Second is held"), second, first:
        pass
    with first, second:  # and both are free
        pass
    assert [VIOLATIONS.pop()] == [
        "the lock of First is taken while that of Second is held"
    ]  # even if the error is swallowed


def test_a_lock_is_named_after_the_class_that_makes_it() -> None:
    make = checked(threading.Lock)

    class Owner:
        def __init__(self) -> None:
            self.lock = make()

    name = Owner.__qualname__.split(".")[0]
    twice = f"the lock of {name} is taken while that of {name} is held"
    with pytest.raises(LockOrderError, match=twice), Owner().lock, Owner().lock:
        pass
    VIOLATIONS.clear()


@pytest.mark.parametrize("is_on", [True, False])
def test_the_debug_mode_is_on_only_if_it_is_asked_for(is_on: bool) -> None:
    program = "from loopwarden._blocking import SYSTEM; print(type(SYSTEM.lock()).__name__)"
    environment = os.environ | {"LOOPWARDEN_CHECK_LOCKS": "1" if is_on else ""}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env=environment
    )

    assert ended.stdout.strip() == ("CheckedLock" if is_on else "lock")


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_locks_are_taken_in_order_in_the_whole_suite() -> None:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-m", "not prove", "-n", "2", "-p", "no:cacheprovider"),
        # There a Ctrl-C strikes between any two steps, and a lock that is written in Python has such steps.
        *("--ignore", "tests/mailbox/sqlite/test_sqlite_interrupts.py"),
        *("--ignore", "tests/mailbox/memory/test_in_memory_interrupts.py"),
        *("--ignore", "tests/test_public_api.py"),  # the seam's locks are of another class
    ]
    environment = os.environ | {"LOOPWARDEN_CHECK_LOCKS": "1"}
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)

    assert "LockOrderError" not in ended.stdout
    assert ended.returncode == 0, ended.stdout[-3_000:]
