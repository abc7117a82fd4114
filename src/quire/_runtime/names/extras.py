"""How to install an extra of the package."""

from __future__ import annotations


def install_extra(extra: str) -> str:
    """Return the sentence, without its full stop, that says how to install an extra."""
    return (
        f'Install it in the directory of the source with: pip install ".[{extra}]" (from a package '
        f'index: pip install "quire-log[{extra}]")'
    )
