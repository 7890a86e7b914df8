"""What a tree of supervisors looks like, as text: to be compared, and to be read when something hangs."""

from __future__ import annotations

import difflib
import textwrap
from typing import TYPE_CHECKING, Any

from loopwarden.actors import LoopRef
from loopwarden.supervision import SupervisorRef

if TYPE_CHECKING:
    import pykka

__all__ = ["assert_tree", "draw_tree"]


def draw_tree(root: SupervisorRef) -> str:
    """Return a supervisor and all below it, a line for each child: its id, its state, what it has in hand.

    No actor is asked, so it works whatever hangs: it shows what each supervisor has last made known.
    """
    return "\n".join([root.name, *_lines(root, 1, is_drawn=True)])


def assert_tree(root: SupervisorRef, expected: str) -> None:
    """Check which children there are, and in which state; a difference is shown line by line.

    A line is ``id: state``, indented by two spaces for each level. The states are those of `ChildState`.

    >>> from loopwarden import ChildSpec, Supervisor
    >>> from loopwarden.testing import ProbeLoop
    >>> with Supervisor.open("media", children=[ChildSpec(id="resize", start=ProbeLoop)]) as media:
    ...     assert_tree(media, '''
    ...         media
    ...           resize: up
    ...     ''')

    Raises:
        AssertionError: if it looks different.
    """
    actual = [root.name, *_lines(root, 1, is_drawn=False)]
    wanted = [line.rstrip() for line in textwrap.dedent(expected).strip().splitlines()]
    if actual != wanted:
        difference = "\n".join(difflib.ndiff(wanted, actual))
        raise AssertionError(f"the tree is not as expected (- expected, + found):\n{difference}")


def _lines(root: SupervisorRef, level: int, *, is_drawn: bool) -> list[str]:
    # Asked, where that is allowed: then whatever it was told before is done, and the children are in their order.
    places = {} if is_drawn else {child.id: place for place, child in enumerate(root.children())}
    lines: list[str] = []
    for child, state, ref in sorted(root.glimpse(), key=lambda each: places.get(each[0], len(places))):
        lines.append(f"{'  ' * level}{child}: {state.value}{_hands(ref) if is_drawn else ''}")
        if isinstance(ref, SupervisorRef):
            lines += _lines(ref, level + 1, is_drawn=is_drawn)
    return lines


def _hands(ref: pykka.ActorRef[Any] | None) -> str:
    if not isinstance(ref, LoopRef):
        return ""
    held = ", ".join(f"{each.message_id} (delivery {each.delivery_count})" for each in ref.in_hand())
    return f", {ref.state.value}" + (f", with {held} in hand" if held else "")
