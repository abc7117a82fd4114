"""How a benchmark ends: its exit status, and one line on standard error if it fails."""

from __future__ import annotations

import sys
from collections.abc import Callable


def status_of(work: Callable[[], int], failure: type[Exception]) -> int:
    """Run a benchmark and return its exit status. `failure` is the type of the expected errors."""
    try:
        return work()
    except failure as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted. All servers that it started are stopped.", file=sys.stderr)
        return 130
