"""Rules that no linter knows."""

from __future__ import annotations

import ast
import importlib
import mailbox
import pkgutil
import re
import sys
import tokenize
from pathlib import Path

import pytest

import loopwarden

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("src/loopwarden", "actors", "mailbox", "supervision")
    for path in (ROOT / folder).rglob("*.py")
    if not path.parent.is_symlink()
)
#: The seam, and what tests put in its place.
SEAMS = {"_blocking.py", "_counted_blocking.py", "_scheduler.py"}
#: Have to do with dates or time zones that are given to them, and ask for no time.
DATES = {"_difference.py", "_bodies.py", "_any_bodies.py", "_schedule.py", "_periodic_loop.py", "logs.py"}
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted(path for folder in ("benchmarks", "examples", "scripts") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def named(path: Path) -> set[str]:
    """Return what a file imports, each module as it is written and each name with its module."""
    return {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_clock_alone_reads_the_time(path: Path) -> None:
    if path.name not in {"clock.py", "_log_writer.py", *DATES}:
        assert not imported(path) & {"time", "datetime", "sched"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_frames_module_alone_asks_where_threads_are(path: Path) -> None:
    if path.name != "_frames.py":  # a collection of garbage in the middle of it stops the whole process
        assert "sys._current_frames" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_seam_alone_blocks_or_starts_threads(path: Path) -> None:
    if path.name in SEAMS:
        return
    blocking = {"Thread", "Event", "Condition", "Lock", "RLock", "Semaphore", "Barrier", "Timer", "sleep"}
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "threading"
    }
    assert not used & blocking
    if path.name != "_process_workers.py":  # processes are the standard library's business
        assert not imported(path) & {"concurrent.futures", "multiprocessing", "_thread"}


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_do_not_sleep(path: Path) -> None:
    sleeps = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        # What the coroutines of a loop wait for is the time of its clock.
        and not (path.name == "test_coroutine_loop.py" and ast.unparse(node.func) == "asyncio.sleep")
        # sleep(0) of asyncio waits for nothing: it lets the others have a turn.
        and not (len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert sleeps == []


def test_longest_lease_is_a_number_in_one_module() -> None:
    pattern = re.compile(r"(?<!\d)43_?200(?!\d)")

    assert [path.name for path in SOURCES if pattern.search(path.read_text(encoding="utf-8"))] == ["_arguments.py"]


IGNORED = re.compile(r"\bnoqa\b|\b(?:mypy|pyright|ruff|type): *ignore\b", re.IGNORECASE)
RULES = re.compile(
    r"# (?:noqa: [A-Z]+\d+(?:, [A-Z]+\d+)*|(?:pyright|type): ignore\[[\w-]+(?:, [\w-]+)*\]|isort: skip)(?:  |$)"
)


@pytest.mark.parametrize("path", [*SOURCES, *TESTS, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_an_ignored_finding_names_its_rule_and_its_reason(path: Path) -> None:
    with path.open("rb") as file:
        comments = {
            each.start[0]: each.string for each in tokenize.tokenize(file.readline) if each.type == tokenize.COMMENT
        }

    # What is left is the reason, one for all rules of the line. Before it mypy wants a `#`, unless pyright comes last.
    reasons = {line: RULES.sub("", comment) for line, comment in comments.items() if IGNORED.search(comment)}

    assert [line for line, reason in reasons.items() if not reason.strip("# ") or IGNORED.search(reason)] == []


PACKAGES = ("actors", "mailbox", "supervision", "testing")
#: Private names that a package takes from another, and why; everything else comes from what the other exports.
BORROWED = {
    "actors": {
        "mailbox._renewer.LeaseRenewer": "only loops have leases renewed; a loop of one's own has LeaseExtender",
        "mailbox._renewer.renewer_of": "as LeaseRenewer",
        "mailbox._token.wait_with": "a wait that a token ends, as that of a receive",
        "mailbox._validation.MAX_BATCH": "coroutines are given as many messages as a receive may return",
        "mailbox._validation.MAX_WORKERS": "one limit of threads, for loops and for pools",
        "mailbox._validation.check_loop": "the options of a loop have the ranges of a receive",
        "mailbox._validation.check_run": "as check_loop",
        "mailbox.memory._mailbox.make_message": "`process` handles a body that was never in a mailbox",
    },
    "supervision": {
        "actors.loop._current.current": "`beat` is heard in the messages of plain Pykka actors too",
        "actors.loop._health.LoopHealth": "a plain Pykka actor is judged like the worker of a loop",
        "actors.loop._health.fields_of_hand": "records say in one way what is in hand",
        "actors.loop._health.merged_fates": "what a message came to is decided in one place",
        "actors.loop._health.stack_of_worker": "a worker that is a coroutine has no thread of its own",
        "actors.loop._health.words_of_hand": "as fields_of_hand",
        "actors.loop._messages.BeginDrain": "only a supervisor has a shutdown drain a loop, with two tickets to watch",
        "actors.loop._loop_ref.refuse_own_wait": "a supervisor answers for its child, whose handler may wait for that",
        "actors.loop._messages.StopCast": "only a supervisor stops a loop without asking for an answer",
        "actors.loop._protocols.ReadsMessages": "only our own loops tell of dead letters, which supervisors pass on",
        "actors.loop._protocols.takes_timeouts": "a loop is asked where it is made whether it takes those of its tree",
        "actors.loop._protocols.check_loop": "what is no loop is refused where it is given, before it has an actor",
        "actors.runtime._exit_hook.alive": "a process that ends stops every actor, also one without a supervisor",
        "mailbox._validation.LEAST_LEASE": "time-outs are checked against the limits of a receive",
        "mailbox._validation.MAX_WAIT": "as LEAST_LEASE",
    },
    "testing": {
        "actors.consumers._mailbox_worker.check_handler": "`run_all` refuses what a loop refuses",
        "actors.consumers._mailbox_worker.refuse_unfinished": "as check_handler",
        "actors.runtime._exit_hook.alive": "the hang guard prints every actor",
        "actors.runtime._exit_hook.forget_all": "the actors of a simulation end with it",
        "mailbox._difference.difference": "a contract tells in what a body has changed",
    },
}


def borrowed(package: str) -> set[str]:
    others = tuple(f"loopwarden.{other}." for other in PACKAGES if other != package)
    folder = ROOT / ("src/loopwarden/testing" if package == "testing" else package)
    names = {name for path in SOURCES if path.is_relative_to(folder) for name in named(path)}
    return {name.removeprefix("loopwarden.") for name in names if name.startswith(others) and "._" in name}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_take_private_names_from_each_other_only_with_a_reason(package: str) -> None:
    assert borrowed(package) == BORROWED.get(package, {}).keys()


#: Pure too, outside of supervision/policy, which a contract of import-linter keeps pure.
PURE = [
    "actors/loop/_state.py",
    "actors/session/_journal_record.py",
    "actors/session/_slice.py",
    "actors/session/_slice.py",
]


@pytest.mark.parametrize("name", PURE)
def test_policy_imports_neither_threads_nor_pykka(name: str) -> None:
    assert not imported(ROOT / name) & {"threading", "pykka"}


def test_mailbox_is_the_standard_librarys() -> None:
    assert hasattr(mailbox, "Maildir")


@pytest.mark.parametrize("folder", ["actors", "mailbox", "supervision"])
def test_the_links_for_type_checkers_point_to_the_root_folders(folder: str) -> None:
    link = ROOT / "src" / "loopwarden" / folder
    if not link.is_symlink():
        pytest.skip("this checkout has no links")  # core.symlinks=false, a zip file

    assert link.readlink() == Path("../..") / folder


PUBLIC = [
    "loopwarden",
    "loopwarden.actors",
    "loopwarden.clock",
    "loopwarden.errors",
    "loopwarden.logs",
    "loopwarden.mailbox",
    "loopwarden.supervision",
    "loopwarden.testing",
    "loopwarden.testing.contracts",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_exported_names_are_there_and_documented(name: str) -> None:
    module = importlib.import_module(name)

    for exported in module.__all__:
        assert (getattr(module, exported).__doc__ or "").strip(), f"{name}.{exported} says nothing"
    assert len(set(module.__all__)) == len(module.__all__)


def test_every_public_module_is_listed_here() -> None:
    modules = {
        f"loopwarden.{module.name}" for module in pkgutil.iter_modules(loopwarden.__path__) if module.name[0] != "_"
    }

    assert modules <= set(PUBLIC)


def test_importing_loopwarden_imports_neither_asyncio_nor_pytest() -> None:
    import subprocess  # noqa: PLC0415  only here

    program = """
import sys, loopwarden.testing
from loopwarden import *
from loopwarden.actors import *
from loopwarden.supervision import *
print({'asyncio', 'pytest'} & set(sys.modules))
"""
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout == "set()\n"
