"""`Pool`: children that are all alike, and how many of them there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from loopwarden._ticket import Ticket

if TYPE_CHECKING:
    from loopwarden.supervision.tree._child_ref import ChildRef
    from loopwarden.supervision.tree._errands import Errands
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = ["Pool"]


@final
class Pool:
    """Makes a household of one template larger and smaller; belongs to the supervisor's thread."""

    def __init__(self, template: ChildSpec, errands: Errands) -> None:
        self._template = template
        self._errands = errands
        self._made = 0

    def resize(self, size: int) -> Ticket[tuple[ChildRef, ...]]:
        """Start new children, or terminate the youngest; the ticket has the refs of those that are to be there."""
        errands = self._errands
        household = errands.household
        there = [child.id for child in household.family.roster.children.values() if not child.is_held_down]
        pending: list[Ticket[Any]] = [errands.terminate_child(child) for child in there[size:]]
        ids = there[:size]
        pending += [errands.wait_started(child) for child in ids]  # an earlier resize may still be at it
        for _ in range(size - len(there)):
            self._made += 1
            child = self._template.model_copy(update={"id": f"{self._template.id}-{self._made}"})
            ids.append(child.id)
            pending.append(errands.start_child(child))
        found = (household.directory.ref(child) for child in ids)
        refs = tuple(ref for ref in found if ref is not None)  # one that could not be added fails the answer below
        done: Ticket[None] = Ticket()
        done.complete(None)
        return done.join(*pending).map(lambda _: refs)

    def __repr__(self) -> str:
        return f"<Pool of {self._template.id!r}, {self._made} made>"
