"""Who goes down with whom, as a pure function.

- ``one_for_one``: nobody.
- ``rest_for_one``: those that were started after it.
- ``one_for_all``: everybody.

They are stopped in the reverse of the order in which they were started, and started again in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwarden.supervision.tree._spec import Strategy

__all__ = ["dragged_along"]


def dragged_along(strategy: Strategy, order: Sequence[str], failed: str) -> Sequence[str]:
    """Return who goes down with ``failed``, in start order.

    >>> dragged_along("rest_for_one", ["a", "b", "c"], "b")
    ['c']
    """
    match strategy:
        case "one_for_one":
            return ()
        case "rest_for_one":
            return order[order.index(failed) + 1 :]
        case "one_for_all":
            return [each for each in order if each != failed]
        case _:
            assert_never(strategy)
