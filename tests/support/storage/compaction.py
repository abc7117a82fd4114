"""A store that compacts at every check of its space."""

from __future__ import annotations

from typing import Any

from quire.storage.config import StorageConfig
from tests.support.storage.storage import (
    EAGER,
    StoreOnDisk,
)
from tests.support.storage.storage import opened as opened_store


def opened(config: StorageConfig = EAGER, **options: Any) -> StoreOnDisk:
    return opened_store(config, **options)
