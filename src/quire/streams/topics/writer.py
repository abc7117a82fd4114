"""The writer of several partitions of a topic, which chooses the partition of each record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self

from quire._runtime.opening import open_or_closed, represented
from quire._runtime.tasks import each
from quire._runtime.units import plural
from quire.client.write.writer import payload_list
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.wire.v2 import Buffer
from quire.errors import (
    QuireError,
    StreamClosedError,
    UsageError,
    done_in_part,
    nothing_done,
    whole_number,
)
from quire.streams.topics.partitioner import partition_of
from quire.streams.write.envelopes import Headers, Text, each_given, text_bytes
from quire.streams.write.pending_entry import Appended
from quire.streams.write.writer import StreamWriter

STICKY_BYTES = 16 * 1024
"""The bytes of records without a key that one partition receives before the next one does.

Records of one call therefore share entries instead of being spread one by one.
"""


class TopicPosition(NamedTuple):
    """The place of a record in a topic."""

    partition: int
    """The number of the partition."""
    position: DLSN
    """The position in the stream of the partition."""


class TopicAppended:
    """Records that were appended to a topic and may not be acknowledged yet."""

    def __init__(self, chosen: Sequence[int], parts: Mapping[int, Appended]) -> None:
        self._chosen = chosen
        self._parts = parts

    def __repr__(self) -> str:
        return represented(self, records=len(self._chosen))

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._chosen)

    async def wait(self) -> list[TopicPosition]:
        """Wait until all records are acknowledged.

        On return they are durable on an ack quorum. Cancelling this call is safe.

        Returns:
            The places of the records, in the order in which they were passed.

        Raises:
            QuireError: A writer failed. The records of other partitions may be acknowledged.
        """
        for appended in self._parts.values():
            try:
                await appended.wait()
            except QuireError as error:
                if len(self._parts) == 1:
                    raise
                raise done_in_part(error) from error.__cause__
        upcoming = {partition: iter(appended) for partition, appended in self._parts.items()}
        return [TopicPosition(partition, next(upcoming[partition])) for partition in self._chosen]


class TopicWriter:
    """A writer of all partitions of a topic, or of some of them. `Topic.open_writer` opens it.

    A record with a key goes to the partition of its key, so the records of one key keep their
    order. Records without a key go to the assigned partitions in turn.

    Each partition has its own writer. If another program takes one of them over, appends to that
    partition raise StreamFencedError. The other partitions can still be written.

    Use it with `async with`: leaving the block closes the writer, and an exception abandons it.
    """

    name: str
    """The name of the topic."""
    partitions: int
    """The number of partitions of the topic."""

    def __init__(self, name: str, partitions: int, writers: Mapping[int, StreamWriter]) -> None:
        self.name = name
        self.partitions = partitions
        self._writers = dict(writers)
        self._sticky = 0
        """The index, among the assigned partitions, of the one for records without a key."""
        self._sticky_bytes = 0
        self._ended = False

    # -- state --------------------------------------------------------------------------------

    @property
    def assigned(self) -> list[int]:
        """The partitions that this writer writes, sorted."""
        return list(self._writers)

    @property
    def closed(self) -> bool:
        """Whether this writer was closed or abandoned."""
        return self._ended

    def __repr__(self) -> str:
        state = open_or_closed(self._ended)
        return represented(self, state, topic=self.name, partitions=self.partitions)

    # -- appending ----------------------------------------------------------------------------

    async def append(
        self,
        payload: Buffer,
        *,
        key: Text | None = None,
        partition: int | None = None,
        txid: int | None = None,
        headers: Headers | None = None,
        event_time: datetime | None = None,
    ) -> TopicPosition:
        """Append one record, and wait until it is acknowledged.

        On return the record is durable on an ack quorum. If the call is cancelled, the record may
        still become part of the topic.

        Args:
            payload: The bytes of the record.
            key: The key of the record, as bytes or as a text, which is encoded in UTF-8.
            partition: The partition of the record. By default its key decides.
            txid: The transaction id of the record, as for `StreamWriter.append`.
            headers: The headers of the record by name. A value is bytes or a text.
            event_time: The time of the event that the record describes, with a time zone.

        Returns:
            The partition and the position of the record.

        Raises:
            UsageError: The partition of the record is not assigned to this writer, or an argument
                is not valid. Nothing was appended.
            StreamFencedError: Another writer took over the partition. Outcome unknown.
            QuireError: See `StreamWriter.append`.
        """
        appended = await self.submit_many(
            (payload,),
            keys=None if key is None else (key,),
            partition=partition,
            txids=None if txid is None else (txid,),
            headers=None if headers is None else (headers,),
            event_times=None if event_time is None else (event_time,),
        )
        return (await appended.wait())[0]

    async def append_many(
        self,
        payloads: Sequence[Buffer],
        *,
        keys: Sequence[Text | None] | None = None,
        partition: int | None = None,
        txids: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        event_times: Sequence[datetime | None] | None = None,
    ) -> list[TopicPosition]:
        """Append several records, and wait until all of them are acknowledged.

        On return all records are durable on an ack quorum. Those of one partition are in the order
        in which they were passed. If the call fails or is cancelled, each partition may have the
        first few of its records.

        Args:
            payloads: The bytes of each record.
            keys: A key for each record, as for `append`, or None for one without a key.
            partition: The partition of all records. By default their keys decide.
            txids: A transaction id for each record, as for `append`.
            headers: The headers of each record, as for `append`, or None for one without headers.
            event_times: An event time for each record, as for `append`, or None for one without.

        Returns:
            The partition and the position of each record.

        Raises:
            QuireError: See `append`.
        """
        appended = await self.submit_many(
            payloads, keys=keys, partition=partition, txids=txids, headers=headers,
            event_times=event_times,
        )  # fmt: skip
        return await appended.wait()

    async def submit_many(
        self,
        payloads: Sequence[Buffer],
        *,
        keys: Sequence[Text | None] | None = None,
        partition: int | None = None,
        txids: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        event_times: Sequence[datetime | None] | None = None,
    ) -> TopicAppended:
        """Append several records, without waiting for their acknowledgement.

        Nothing is durable on return. Wait for the records with `TopicAppended.wait` or `flush`. If
        the call is cancelled while it waits for buffer space, some partitions may get their
        records.

        Args:
            payloads: The bytes of each record.
            keys: A key for each record, as for `append`, or None for one without a key.
            partition: The partition of all records. By default their keys decide.
            txids: A transaction id for each record, as for `append`.
            headers: The headers of each record, as for `append`, or None for one without headers.
            event_times: An event time for each record, as for `append`, or None for one without.

        Returns:
            The records, to wait for.

        Raises:
            QuireError: See `append`. If a partition refuses its records, others may get theirs.
        """
        if self._ended:
            raise nothing_done(
                StreamClosedError(
                    f"the writer of topic {self.name} is closed, so nothing was appended",
                    remedy="Open the topic for writing again",
                )
            )
        values = payload_list(payloads)
        count = len(values)
        given_keys: Sequence[Text | None] = each_given("keys", keys, count)
        checked = [None if k is None else text_bytes(k, "the key of a record") for k in given_keys]
        columns = {
            name: each_given(name, given, count)
            for name, given in (
                ("txids", txids), ("headers", headers), ("event_times", event_times),
            )
            if given is not None
        }  # fmt: skip
        if keys is not None:
            columns["keys"] = checked
        chosen = self._choose(values, checked, partition)
        rows: dict[int, list[int]] = {}
        for at, number in enumerate(chosen):
            rows.setdefault(number, []).append(at)
        parts: dict[int, Appended] = {}
        for number, indexes in rows.items():
            given = {name: [column[at] for at in indexes] for name, column in columns.items()}
            try:
                parts[number] = await self._writers[number].submit_many(
                    [values[at] for at in indexes],
                    **given,  # type: ignore[arg-type]
                )
            except QuireError as error:
                if not parts:
                    raise
                raise self._refused_in_part(error, number, parts) from error
        return TopicAppended(chosen, parts)

    def _refused_in_part(
        self, error: QuireError, partition: int, others: Collection[int]
    ) -> QuireError:
        """Return the error of a partition that refused its records after `others` got theirs."""
        found = done_in_part(error)
        theirs = plural("partition", len(others))
        found.args = (
            f"partition {partition} of topic {self.name} got none of its records, but {theirs} "
            f"{', '.join(map(str, sorted(others)))} may have got theirs. The reason: "
            f"{error.args[0]}",
            *error.args[1:],
        )
        return found

    def _choose(
        self, values: Sequence[bytes], keys: Sequence[bytes | None], partition: int | None
    ) -> list[int]:
        """Return the partition of each record. Raises UsageError if one is not assigned."""
        if partition is not None:
            partition = whole_number("the argument partition", partition)
            self._check_assigned(partition, "")
            return [partition] * len(values)
        assigned = self.assigned
        chosen = []
        for value, key in zip(values, keys):
            if key is not None:
                number = partition_of(key, self.partitions)
                self._check_assigned(number, f", the partition of key {key[:40]!r},")
            else:
                number = self._next_sticky(len(value), assigned)
            chosen.append(number)
        return chosen

    def _check_assigned(self, partition: int, why: str) -> None:
        if partition in self._writers:
            return
        if not 0 <= partition < self.partitions:
            raise UsageError(
                f"topic {self.name} has no partition {partition}: it has the partitions 0 to "
                f"{self.partitions - 1}. Nothing was appended"
            )
        raise UsageError(
            f"partition {partition}{why} of topic {self.name} is not assigned to this writer, "
            f"which writes {', '.join(map(str, self._writers))}. Nothing was appended",
            remedy="Append the record with the writer of that partition, or open a writer of all "
            "partitions",
        )

    def _next_sticky(self, size_bytes: int, assigned: Sequence[int]) -> int:
        """Return the partition of the next record without a key."""
        if self._sticky_bytes >= STICKY_BYTES:
            self._sticky, self._sticky_bytes = (self._sticky + 1) % len(assigned), 0
        self._sticky_bytes += size_bytes
        return assigned[self._sticky]

    async def flush(self) -> None:
        """Wait until every record that was appended is acknowledged.

        On return these records are durable on an ack quorum. Cancelling this call is safe: it takes
        no record back.

        Raises:
            QuireError: The writer of a partition failed before its records were acknowledged, or it
                appended none and is closed. See `append`.
        """
        for writer in self._writers.values():
            await writer.flush()

    async def roll(self) -> None:
        """Complete the segments of all records that were appended. Later records go to new ones.

        If the call is cancelled, some segments may be completed. Segments are kept as described at
        `StreamWriter.roll`.

        Raises:
            QuireError: A writer failed, or kept its segment. See `StreamWriter.roll`.
        """
        await each(self._writers.values(), StreamWriter.roll)

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait until all records are acknowledged, and close the writers of all partitions.

        All of them are closed, even if one of them fails. If the call is cancelled, the rest is
        abandoned. Calling this again is safe.

        Raises:
            QuireError: The error of a partition whose writer has failed. If several have failed,
                the others are not reported.
        """
        self._ended = True
        failure: QuireError | None = None

        async def close(writer: StreamWriter) -> None:
            nonlocal failure
            try:
                await writer.close()
            except QuireError as error:
                failure = failure or error

        try:
            await each(self._writers.values(), close)
        except BaseException:
            self.abandon()
            raise
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Close the writers without waiting. Records in flight may or may not be appended."""
        self._ended = True
        for writer in self._writers.values():
            writer.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abandon()
