"""The metadata formats and the arithmetic of quorums, as Apache's jars wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "metadata.json").read_text(encoding="utf-8")
)
NAMED: dict[str, Any] = {vector["name"]: vector for vector in GOLDEN["vectors"]}
"""The golden vectors for metadata, by name."""
