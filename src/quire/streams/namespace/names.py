"""Checks of the names and tokens of streams, for callers that validate before they begin."""

from __future__ import annotations

from quire.codec.distributedlog.control_record import check_token
from quire.codec.distributedlog.name import stream_name
from quire.streams.publish.published import check_key_name
from quire.streams.read.subscriptions import check_subscription_name

__all__ = ["check_key_name", "check_stream_name", "check_subscription_name", "check_token"]


def check_stream_name(name: str) -> str:
    """Return `name`. Raises UsageError if no stream can have it."""
    stream_name(name)
    return name
