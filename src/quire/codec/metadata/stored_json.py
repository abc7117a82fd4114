"""Decode JSON that Quire stored, and refuse what Quire never stores."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

BITS_64 = 1 << 63


def stored_json(data: bytes | str, *, large_numbers: bool = False) -> Any:
    """Return the value that a stored JSON text describes.

    Damage to a value may give any JSON text. So every text that Quire never stores is refused with
    the same error, before a conversion or a calculation fails with another one.

    Args:
        data: The JSON text.
        large_numbers: Whether the value may have whole numbers of more than 64 bits.

    Raises:
        ValueError: The bytes are not JSON, are nested too deeply, or have a number that is not
            finite or that has more than 64 bits.
    """

    def whole(digits: str) -> int:
        number = int(digits)
        if not large_numbers and not -BITS_64 <= number < BITS_64:
            raise ValueError(f"a number in it has {len(digits)} digits, which are too many")
        return number

    try:
        return json.loads(data, parse_float=_finite, parse_int=whole, parse_constant=_refused)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} in it is too large")
    return number


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
