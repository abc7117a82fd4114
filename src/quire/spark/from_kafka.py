"""The options of Spark's Kafka connector, and the options of Quire that replace them.

A program that comes from Kafka has these names. The error for them says what to write instead.
`docs/guides/spark/spark-from-kafka.md` has both side by side.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire._runtime.units import them

STREAMS = "'stream' (one) or 'streams' (several, with commas)"
START = "'start' (earliest, latest, a position, seq:N or time:ISO)"
END = "'end', for batches only (a position, seq:N or time:ISO)"
NO_GROUP = "leave it out, or name a 'subscription' under which positions are stored"
PLACES: dict[str, str] = {
    "kafka.bootstrap.servers": "'metadata' (the metadata URI), or the variable QUIRE_METADATA",
    "subscribe": STREAMS,
    "assign": "'topic' with 'partitions' (such as 0,2,5-7)",
    "subscribePattern": "'streamPattern' (a shell pattern: orders-* and not orders-.*)",
    "startingOffsets": START,
    "startingOffsetsByTimestamp": "'start' (time:ISO)",
    "startingOffsetsByTimestampStrategy": "leave it out",
    "startingTimestamp": "'start' (time:ISO)",
    "endingOffsets": END,
    "endingOffsetsByTimestamp": "'end' (time:ISO), for batches only",
    "endingTimestamp": "'end' (time:ISO), for batches only",
    "maxOffsetsPerTrigger": "'maxRecordsPerTrigger'",
    "minOffsetsPerTrigger": "'minRecordsPerTrigger'",
    "maxRecordsPerPartition": "'partitionBytes' (the size of a task in bytes)",
    "includeHeaders": "'envelope', which also adds the key and the event time",
    "groupIdPrefix": NO_GROUP,
    "kafka.group.id": NO_GROUP,
    "kafka.security.protocol": "'tlsCa', which enables TLS",
    "kafka.ssl.truststore.location": "'tlsCa' (a PEM file)",
    "kafka.ssl.keystore.location": "'tlsCert' and 'tlsKey' (PEM files)",
    "kafka.transactional.id": "'txnId' (batches) or 'writerId' (streaming queries)",
    "kafkaConsumer.pollTimeoutMs": "leave it out",
    "fetchOffset.numRetries": "leave it out",
    "fetchOffset.retryIntervalMs": "leave it out",
}
"""The replacement of each option of Spark's Kafka connector, by option name."""
_NAMES = {name.lower(): name for name in PLACES}


def kafka_option(name: str) -> tuple[str, str] | None:
    """Return the usual spelling and the replacement of an option of Spark's Kafka connector.

    Returns None if the connector has no such option.

    Args:
        name: The name in lower case.
    """
    if name in _NAMES:
        return _NAMES[name], PLACES[_NAMES[name]]
    if name.startswith("kafka."):
        return name, "leave it out"
    return None


def kafka_advice(names: Iterable[str]) -> str:
    """Return a sentence that says what to do about each of these options of Kafka's connector."""
    found = [place for name in names if (place := kafka_option(name)) is not None]
    dropped = [name for name, place in found if place == "leave it out"]
    parts = [
        f"'{name}': {place if place.startswith('leave') else 'use ' + place}"
        for name, place in found
        if name not in dropped
    ]
    if dropped:
        parts.append(f"{', '.join(map(repr, dropped))}: leave {them(len(dropped))} out")
    return "; ".join(parts)
