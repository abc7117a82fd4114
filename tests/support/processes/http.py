"""A client for the HTTP API of bookies and other servers."""

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
"""The HTTP token of clusters in which tests change something over the HTTP API."""


class Http:
    """A client of one HTTP server. It sends the token if it was given one."""

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
        """Return the values of metrics by name, as the server reports them now.

        These are samples whose only label is `directory`, or that have `success="true"`.
        """
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
