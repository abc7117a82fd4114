"""The parameters of a test of which only the first ones belong to `make test`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the parameters, and mark those after the first `count` as long.

    A tuple is the values of several arguments of the test.
    """
    return [
        value
        if at < count
        else pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.long)
        for at, value in enumerate(values)
    ]
