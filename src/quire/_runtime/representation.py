"""The `repr` of handles: what it is, of what, and in which state. No secrets."""

from __future__ import annotations


def represented(handle: object, *words: str, **facts: object) -> str:
    """Return `<LedgerWriter ledger=7 open>`: the facts that name it, then words for its state."""
    named = (f"{name}={value}" for name, value in facts.items())
    return f"<{' '.join((type(handle).__name__, *named, *words))}>"


def open_or_closed(closed: bool) -> str:
    """Return the word for the state of a handle."""
    return "closed" if closed else "open"
