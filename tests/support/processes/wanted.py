"""The features of the machine that some tests need, and why they are missing here."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.network import netns
from tests.support.storage import small_disk


def _no_small_disk() -> str:
    with tempfile.TemporaryDirectory() as directory:
        return small_disk.refused(Path(directory) / "disk")


WANTED = {"namespaces": netns.refused, "small_disk": _no_small_disk}
