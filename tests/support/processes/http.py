"""Helpers of `test_http` that other test modules also use."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 60.0
TOKEN = "the-token-of-the-tests"
"""The token of clusters whose HTTP API the tests use to change something."""


class Http:
    """An HTTP client of one server, which sends the token, if there is one."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._known = {"Authorization": f"Bearer {token}"} if token else {}

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(
            self.url + path, data, {**kind, **self._known, **(headers or {})}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read().decode()
        return status, json.loads(text) if text.startswith(("{", "[", '"')) else text

    def get(self, path: str) -> Any:
        status, value = self("GET", path)
        assert status == 200, value
        return value

    def metrics(self) -> dict[str, float]:
        """Return the samples with no label but `directory`, and those with `success="true"`."""
        found, text = {}, self.get("/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                # The parser appends a suffix that Apache's counters do not have.
                name = sample.name if sample.name in text else sample.name.removesuffix("_total")
                if not sample.labels.keys() - {"directory"} or sample.labels == {"success": "true"}:
                    found[name] = sample.value
        return found


def url_in(path: Path) -> str:
    found = re.findall(r'"event": "http_serving", "url": "([^"]+)"', path.read_text())
    assert found, path.read_text()
    url: str = found[-1]
    return url
