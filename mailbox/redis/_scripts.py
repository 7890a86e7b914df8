"""`Script`: what the server does in one step, as a ``.lua`` file; and the keys that it does it to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import final
from urllib.parse import quote

__all__ = ["MAILBOXES", "PREFIX", "SCRIPTS", "Script", "base_of", "dead_of"]

_PACKAGE = __name__.rpartition(".")[0]
#: What all keys begin with; an access control list needs to know no more.
PREFIX = "loopwarden:"
#: The set of the names of all mailboxes.
MAILBOXES = f"{PREFIX}mailboxes"


def base_of(name: str) -> str:
    """Return the key that those of a mailbox begin with; the braces keep them in one hash slot."""
    return f"{PREFIX}{{{quote(name, safe=' :/@+=,;!$&()*~')}}}"


def dead_of(base: str) -> str:
    """Return the same for its dead letters."""
    return f"{base}:dead"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """What is sent to the server: the hash of a script, or its text if the server does not know it.

    A server that was restarted, or whose scripts were flushed, is given the text again. Two versions of a script have
    two hashes, so processes of two versions do not get in each other's way.
    """

    name: str
    text: str
    hash: str
    #: Which argument says that the call is made again, because the answer to it was lost; None if that is harmless.
    again: int | None


def _load() -> dict[str, Script]:
    folder = files(_PACKAGE) / "scripts"
    common = (folder / "common.lua").read_text("utf-8")
    scripts: dict[str, Script] = {}
    for name, again in _NAMES.items():
        text = (folder / f"{name}.lua").read_text("utf-8")
        whole = text if name == "wake" else common + text
        scripts[name] = Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest(), again)
    return scripts


#: The scripts, with the argument that says "again", counted from 0.
_NAMES: dict[str, int | None] = {
    "about": None,
    "acknowledge": 1,
    "beat": None,
    "bury": 1,
    "check": None,
    "count": None,
    "extend": None,
    "fleet": None,
    "give_back": 1,
    "held": None,
    "leave": None,
    "letters": None,
    "look": None,
    "purge": None,
    "reap": None,
    "receive": None,
    "redrive": None,
    "ring": None,
    "send": None,  # the server knows it again by its number
    "state": None,
    "stats": None,
    "sweep": None,
    "wake": None,
}
SCRIPTS = _load()
