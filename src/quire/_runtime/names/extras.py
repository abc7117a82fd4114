"""The hint that tells users how to install an optional extra of the package."""

from __future__ import annotations


def install_extra(extra: str) -> str:
    """Return the command that installs an extra, as a sentence without its full stop."""
    return (
        f'Install it in the directory of the source with: pip install ".[{extra}]" (from a package '
        f'index: pip install "quire-log[{extra}]")'
    )
