"""What users may rely on is written down, and changes only when that is changed with it."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from typing import TYPE_CHECKING

import pytest
from public_api import EXPECTED, public_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Derive = Callable[..., str]


def test_public_api_is_as_it_is_written_down() -> None:
    expected = EXPECTED.read_text(encoding="utf-8")

    changes = difflib.unified_diff(
        expected.splitlines(), public_api().splitlines(), str(EXPECTED.name), "the code", lineterm="", n=2
    )

    if shown := "\n".join(changes):
        pytest.fail(
            f"the public API has changed:\n\n{shown}\n\n"
            "If that is intended, tell it in CHANGELOG.md, and accept it with\n"
            "    .venv/bin/python scripts/public_api.py --write",
            pytrace=False,
        )


def test_public_api_is_written_down_without_private_modules_and_addresses() -> None:
    text = EXPECTED.read_text(encoding="utf-8")

    assert re.findall(r"\b_\w+\.|0x[0-9a-f]+", text) == []


#: Parameters whose type has no public name, because what is given has one: any lock will do, and any mailbox.
UNNAMED = {"InMemoryMailbox(lock)", "ReaperActor(mailboxes)"}


def test_public_api_takes_only_what_users_can_name() -> None:
    signatures = re.findall(r"def ([\w.]+)\(((?:[^()]|\([^()]*\))*)\)", EXPECTED.read_text(encoding="utf-8"))

    unnamed = {
        f"{function}({parameter})"
        for function, parameters in signatures
        for parameter in re.findall(r"(\w+): [^:]*?<(?:protocol|private)>", parameters)
    }

    assert unnamed == UNNAMED


# A small package, which is arranged in other ways, or changed.

FACE = """
from sample.{errors} import SampleError
from sample.{parts} import Colour, Machine, Order, open_machine, OPENED

__all__ = ["Colour", "Machine", "OPENED", "Order", "SampleError", "open_machine"]
"""
ERRORS = """
class SampleError(ValueError):
    def __init__(self, machine: str, text: str = "") -> None:
        super().__init__(text)
        self.machine = machine
"""
PARTS = """
from __future__ import annotations
import enum
from typing import TYPE_CHECKING, Literal, Protocol
from pydantic import BaseModel
from sample.{errors} import SampleError
if TYPE_CHECKING:
    from collections.abc import Callable

Speed = Literal["slow", "fast"]

class Colour(enum.StrEnum):
    RED = "red"

class Order(BaseModel, frozen=True):
    id: int
    colour: Colour = Colour.RED
    speed: Speed = "slow"

class {base}:
    def stop(self, timeout: float = 5.0) -> bool:
        return True

class Machine({base}):
    limit = 3

    def __init__(self, name: str, *, on_stop: Callable[[], object] | None = None) -> None:
        self.name = name
        self._on_stop = on_stop

    @property
    def error(self) -> SampleError | None:
        return None

    @classmethod
    def build(cls, order: Order, speed: Speed = "fast") -> Machine:
        return cls(str(order.id))

def open_machine(name: str, colour: Colour = Colour.RED, make: Callable[[str], Machine] = Machine) -> Machine:
    return make(name)

OPENED = Machine("opened")
"""
TEXT = """\
[sample]

enum Colour(enum.StrEnum)
    member Colour.RED = 'red'

class Machine
    def Machine(name: str, *, on_stop: Callable[[], object] | None = None)
    classmethod def Machine.build(order: Order, speed: Literal['slow', 'fast'] = 'fast') -> Machine
    property Machine.error: SampleError | None
    attribute Machine.limit = 3
    attribute Machine.name: str
    def Machine.stop(timeout: float = 5.0) -> bool

constant OPENED: Machine

model Order
    config Order: frozen=True
    field Order.id: int
    field Order.colour: Colour = Colour.RED
    field Order.speed: Literal['slow', 'fast'] = 'slow'

error SampleError(ValueError)
    def SampleError(machine: str, text: str = '')
    attribute SampleError.machine: str

def open_machine(
    name: str,
    colour: Colour = Colour.RED,
    make: Callable[[str], Machine] = Machine,
) -> Machine
"""


@pytest.fixture
def derive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Derive]:
    """Return the public API of the package, with these names of private things, and this text for that."""

    def derive(
        old: str = "", new: str = "", *, errors: str = "_errors", parts: str = "_parts", base: str = "_B"
    ) -> str:
        for name, source in (("__init__", FACE), (errors, ERRORS), (parts, PARTS)):
            path = tmp_path.joinpath("sample", *name.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            assert old in FACE + ERRORS + PARTS
            text = source.replace(old, new) if old else source
            path.write_text(text.format(errors=errors, parts=parts, base=base), encoding="utf-8")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        importlib.invalidate_caches()
        return public_api(["sample"])

    yield derive
    for name in [name for name in sys.modules if name.split(".")[0] == "sample"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"errors": "inner._faults", "parts": "inner.deep._machine"},
        {"base": "Stoppable"},
        {"old": "Speed", "new": "_Pace"},
        {"old": "if TYPE_CHECKING:", "new": "if True:"},
        {"old": "_on_stop", "new": "_callback"},
    ],
    ids=["as it is", "modules moved", "base renamed", "alias renamed", "import for all", "attribute renamed"],
)
def test_public_api_is_the_same_however_private_things_are_arranged(derive: Derive, names: dict[str, str]) -> None:
    assert derive(**names) == TEXT


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("timeout: float = 5.0", "timeout: float = 6.0", "def Machine.stop(timeout: float = 6.0) -> bool"),
        ("def stop(", "def halt(", "def Machine.halt(timeout: float = 5.0) -> bool"),
        ("SampleError(ValueError)", "SampleError(TypeError)", "error SampleError(TypeError)"),
        ("self.machine = machine", "self.culprit = machine", "attribute SampleError.culprit: str"),
        ('RED = "red"', 'RED = "crimson"', "member Colour.RED = 'crimson'"),
        ("    id: int", "    id: int = 0", "field Order.id: int = 0"),
        (', "fast"]', "]", "field Order.speed: Literal['slow'] = 'slow'"),
        ("limit = 3", "limit = 4", "attribute Machine.limit = 4"),
        ("@property", "@staticmethod", "staticmethod def Machine.error(self) -> SampleError | None"),
        (', "open_machine"]', "]", None),
    ],
    ids=["default", "method", "base", "attribute", "member", "field", "alias", "value", "kind", "export"],
)
def test_public_api_differs_when_users_see_a_difference(derive: Derive, old: str, new: str, line: str | None) -> None:
    found = derive(old, new)

    assert found != TEXT
    assert line is None or line in [each.strip() for each in found.splitlines()]
