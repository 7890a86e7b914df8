"""A package imports what it exports when it is asked for: nothing before, and the same as a type checker sees."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import loopwarden
from loopwarden.supervision import Supervisor

PACKAGES = ["loopwarden", "loopwarden.actors", "loopwarden.supervision"]
#: What a supervised loop does without.
NOT_NEEDED = {
    "loopwarden.actors.consumers._eval_loop",
    "loopwarden.actors.consumers._periodic_loop",
    "loopwarden.actors.offload",
    "loopwarden.actors.session",
    "loopwarden.mailbox.redis",
    "loopwarden.mailbox.sqlite",
    "loopwarden.supervision.daemons",
    "loopwarden.supervision.health",
    "loopwarden.supervision.service",
}


def tree_of(package: str) -> ast.Module:
    file = importlib.import_module(package).__file__
    assert file is not None
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def run(program: str) -> str:
    """Run a program in a process of its own, which has imported nothing yet."""
    return subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_package_finds_each_name_where_a_type_checker_does(package: str) -> None:
    [told] = [
        node.body for node in tree_of(package).body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    imported = {alias.name: node.module for node in told if isinstance(node, ast.ImportFrom) for alias in node.names}
    [homes] = [node for node in ast.walk(tree_of(package)) if isinstance(node, ast.Dict)]

    found = {name: home for home, names in ast.literal_eval(homes).items() for name in names.split()}

    assert found == imported
    assert found.keys() == set(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_lists_all_that_it_exports_and_knows_nothing_else(package: str) -> None:
    module = importlib.import_module(package)

    assert set(module.__all__) <= set(dir(module))
    assert "__name__" in dir(module)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        _ = module.Nonsense


def test_package_returns_the_same_thing_each_time() -> None:
    assert loopwarden.Supervisor is Supervisor
    assert loopwarden.Supervisor is loopwarden.Supervisor


def test_modules_of_the_package_are_reached_through_it() -> None:
    names = ("actors", "clock", "errors", "mailbox", "supervision")
    program = f"import loopwarden; print([getattr(loopwarden, name).__name__ for name in {names}])"

    assert run(program) == f"{[f'loopwarden.{name}' for name in names]}\n"


def test_import_of_the_package_imports_nothing_that_it_exports() -> None:
    program = "import sys, loopwarden; print(sorted(name for name in sys.modules if name.startswith('loopwarden')))"

    assert run(program) == "['loopwarden', 'loopwarden._lazy']\n"
    assert run("import sys, loopwarden; print({'pydantic', 'pykka'} & set(sys.modules))") == "set()\n"


def test_import_of_what_a_supervised_loop_needs_imports_nothing_else() -> None:
    program = f"""
import sys
from loopwarden import ChildSpec, LoopActor, MailboxLoop, Supervisor, Ticket
print({NOT_NEEDED} & set(sys.modules))
print({{"asyncio", "difflib", "http.server", "multiprocessing", "redis", "sqlite3"}} & set(sys.modules))
"""

    assert run(program) == "set()\nset()\n"


def test_package_can_be_asked_by_many_threads_at_once() -> None:
    program = """
import sys, threading
sys.setswitchinterval(1e-5)
import loopwarden
names = [name for name in loopwarden.__all__]
start = threading.Barrier(8)
found, failed = [], []

def ask(number):
    start.wait()
    try:
        mine = [id(getattr(loopwarden, name)) for name in sorted(names, key=lambda name: hash((number, name)))]
        found.append(sorted(mine))
    except BaseException as error:
        failed.append(repr(error))

threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(failed, len(found), all(each == found[0] for each in found))
"""

    assert run(program) == "[] 8 True\n"


@pytest.mark.parametrize(
    "where",
    [
        "loopwarden._ticket",
        "loopwarden.actors",
        "loopwarden.actors.loop._messages",
        "loopwarden.supervision.tree._executor",
        "loopwarden.supervision.tree._supervisor",
        "pydantic",
    ],
)
def test_package_that_was_interrupted_can_be_asked_again(where: str) -> None:
    program = f"""
import sys
import loopwarden

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {where!r}:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
try:
    loopwarden.Supervisor
    print("nothing was interrupted")
except KeyboardInterrupt:
    pass
with loopwarden.Supervisor.open("media") as media:
    print(media.children(), loopwarden.Supervisor is loopwarden.supervision.Supervisor)
"""

    assert run(program) == "() True\n"
