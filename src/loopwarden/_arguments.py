"""What an argument may be: numbers, in one place.

Types are asked by ``type()``, because the class of other people's objects may be a property that raises.
"""

from __future__ import annotations

import math
import sys
from typing import TypeGuard, cast

__all__ = ["is_number", "is_wait", "is_whole"]

#: A larger whole number cannot be made a float.
_LARGEST = sys.float_info.max


def is_whole(value: object) -> TypeGuard[int]:
    """Say whether it is a whole number; True is none."""
    return issubclass(type(value), int) and type(value) is not bool


def is_number(value: object) -> TypeGuard[float]:
    """Say whether it is a finite number: an int or a float, or one that is derived from them, as NumPy's are."""
    return (is_whole(value) or issubclass(type(value), float)) and -_LARGEST <= cast("float", value) <= _LARGEST


def is_wait(value: object) -> TypeGuard[float]:
    """Say whether it is a number of seconds that one can wait for, for ever included."""
    return is_number(value) or (issubclass(type(value), float) and math.isinf(cast("float", value)))
