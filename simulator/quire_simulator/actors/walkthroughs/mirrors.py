"""Walkthroughs of replication: a stream or a topic is copied, and everything is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import Truncation
from quire.errors import StreamDivergedError, StreamFencedError, StreamGapError
from quire.streams import Namespace
from quire.streams.mirror.copy import Piece, copy_ledger
from quire.streams.mirror.lag import Lag
from quire.streams.mirror.leftovers import Leftovers
from quire.streams.mirror.mirror import Mirror
from quire.streams.mirror.topics import TopicCopies
from quire.streams.namespace.namespace import open_namespace
from quire_simulator.actors.walkthroughs.streams import Model, make, read, settings_of, write_some
from quire_simulator.actors.walkthroughs.walk import Walk

SOURCE, TARGET = "/sim/walk-from", "/sim/walk-to"
NAME = "events"
STEPS = 4
SOON_S = 20.0
"""Seconds within which a copy that follows its source has everything."""
POLL_S = 0.05
EXPLICIT_LAC_S = 0.1
"""The interval of explicit LACs in a copy, as in `quire pipeline replicate`."""
PATIENCE_S = 10.0
PARTITIONS = 2


class Copy:
    """The copy of one stream, and the processes that make it."""

    def __init__(self, model: Model, target: Namespace, *, truncation: bool) -> None:
        self.model = model
        self.walk = model.walk
        self.target = target
        self.truncation = truncation
        self.pieces: list[Piece] = []
        """The results of the copies of ledgers that tasks made."""

    def mirror(self, stop: asyncio.Event, *, on_gap: str = "raise") -> Mirror:
        """Return a replication whose tasks copy ledgers here."""
        source, target = self.model.streams, self.target

        async def copy(pieces: Sequence[Piece]) -> list[Piece]:
            made = [
                await copy_ledger(
                    source.client, target.client, piece, source.password, target.password
                )
                for piece in pieces
            ]
            self.pieces += made
            return made

        return Mirror(
            source, target, self.model.name, copy, Leftovers(target.client), overrides={},
            truncation=self.truncation, on_gap=on_gap, stop=stop, patience_s=PATIENCE_S,
        )  # fmt: skip

    async def once(self, *, on_gap: str = "raise") -> Mirror:
        """Copy what there is, and return the replication."""
        stop = asyncio.Event()
        stop.set()
        mirror = self.mirror(stop, on_gap=on_gap)
        await mirror.run()
        await mirror.close()
        return mirror

    async def compare(self, what: str) -> None:
        """Compare the copy with the source: records, segments and ledgers."""
        walk, source, target, name = self.walk, self.model.streams, self.target, self.model.name
        copy = Model(walk, target, name, self.model.given)
        ours, theirs = await read(self.model), await read(copy)
        walk.same(f"the number of records of {what}", len(theirs), len(ours))
        for mine, its in zip(ours, theirs, strict=False):
            walk.same(f"a record of {what}", (its, its.key, dict(its.headers), its.event_time),
                      (mine, mine.key, dict(mine.headers), mine.event_time))  # fmt: skip
        there = {one.lssn: one for one in await target.segments(name)}
        cluster = walk.stage.world.cluster
        for segment in await source.segments(name):
            if segment.truncation is Truncation.TRUNCATED or segment.lssn not in there:
                continue
            found = there[segment.lssn]
            walk.same(f"a segment of {what}",
                      (found.in_progress, found.record_count, found.last_dlsn, found.last_txid),
                      (segment.in_progress, segment.record_count, segment.last_dlsn,
                       segment.last_txid))  # fmt: skip
            if not segment.in_progress:
                original, other = (cluster.ledger(one.ledger_id).value for one in (segment, found))
                walk.same(f"the ledger of a segment of {what}",
                          (other.closed, other.last_entry_id, other.length),
                          (True, original.last_entry_id, original.length))  # fmt: skip

    async def check_counts(self, mirror: Mirror, segments: Sequence[int]) -> None:
        """Compare what a replication says that it copied with the ledgers of these segments."""
        walk, cluster = self.walk, self.walk.stage.world.cluster
        found = [
            cluster.ledger(one.ledger_id).value
            for one in await self.model.streams.segments(self.model.name)
            if one.lssn in segments and one.truncation is not Truncation.TRUNCATED
        ]
        walk.same("the number of copied segments", mirror.copied.segments, len(segments))
        walk.same("the number of copied entries", mirror.copied.entries,
                  sum(one.last_entry_id + 1 for one in found))  # fmt: skip
        walk.same("the number of copied bytes", mirror.copied.size_bytes,
                  sum(one.length for one in found))  # fmt: skip

    def check_lag(self, lag: tuple[int, int, float], records: int, what: str) -> None:
        walk = self.walk
        walk.same(f"the lag in records {what}", lag[0], records)
        walk.same(f"whether there is a lag in bytes {what}", lag[1] > 0, records > 0)
        if not records:
            walk.same(f"the lag in seconds {what}", lag[2], 0.0)


async def _completed(streams: Namespace, name: str) -> list[int]:
    return [one.lssn for one in await streams.segments(name) if not one.in_progress]


async def walk_copies(walk: Walk) -> None:
    """Copy a stream that is complete, add to it and truncate it, and copy it again."""
    settings = settings_of(walk)
    model = await make(walk, SOURCE, NAME, settings, of_stream=True)
    target = await open_namespace(walk.client, TARGET, create=True)
    writer = await write_some(model, await model.streams.open_writer(NAME), STEPS)
    await writer.close()
    copy = Copy(model, target, truncation=walk.chance.random() < 0.5)
    stop = asyncio.Event()
    stop.set()
    mirror = copy.mirror(stop)
    lag = Lag(mirror)
    copy.check_lag(await lag.measure(), model.count, "of a stream that is not copied")
    await mirror.run()
    copy.check_lag(await lag.measure(), 0, "of a copy that is complete")
    await mirror.close()
    first = await _completed(model.streams, NAME)
    await copy.check_counts(mirror, first)
    walk.same("the copied ledgers", len(copy.pieces), len(first))
    await copy.compare("a first copy")
    told = (await target.stream_settings(NAME)).as_dict()
    walk.same("the settings of a copy", {one: told[one] for one in settings}, settings)
    again = await copy.once()
    walk.same("what is copied again", again.copied.segments, 0)
    writer = await write_some(model, await model.streams.open_writer(NAME), STEPS)
    await writer.close()
    more = [one for one in await _completed(model.streams, NAME) if one not in first]
    await copy.check_counts(await copy.once(), more)
    await copy.compare("a copy of what was added")
    await _truncated(walk, copy, first)
    await _diverged(walk, copy)
    await target.close()
    await model.streams.close()


async def _truncated(walk: Walk, copy: Copy, first: Sequence[int]) -> None:
    """Truncate the source. The copy is truncated as well, or keeps everything."""
    model, target = copy.model, copy.target
    kept = await read(Model(walk, target, NAME, model.given))
    before = DLSN(first[-1] + 1, 0, 0)
    await model.streams.truncate(NAME, before)
    await copy.once()
    found = await read(Model(walk, target, NAME, model.given))
    wanted = [one for one in kept if one.position >= before] if copy.truncation else kept
    walk.same("the records of a copy of a truncated stream", found, wanted)
    # A segment that is truncated before it was copied is a gap.
    writer = await model.streams.open_writer(NAME)
    await model.append(writer)
    await writer.roll()
    await model.append(writer)
    await writer.close()
    newest = (await model.streams.segments(NAME))[-1]
    await model.streams.truncate(NAME, newest.first_dlsn)
    if not copy.truncation:
        await walk.refused("a copy of a stream with a gap", copy.once(), StreamGapError, NAME)
        await copy.once(on_gap="skip")
    else:
        await copy.once()
    there = await read(Model(walk, target, NAME, model.given), start=newest.first_dlsn)
    walk.same("the records after a gap", there, await read(model, start=newest.first_dlsn))


async def _diverged(walk: Walk, copy: Copy) -> None:
    """Write to the copy. It is no copy any more, and replication says so."""
    writer = await copy.target.open_writer(NAME)
    txid = writer.last_txid + 1 if copy.model.given else None
    await writer.append(b"of the copy", txid=txid, token=copy.model.token)
    await writer.close()
    await walk.refused("a copy that another writer changed", copy.once(), StreamDivergedError, NAME)


async def walk_following(walk: Walk) -> None:
    """Copy a stream while it is written. The copy's readers see each record soon."""
    model = await make(walk, SOURCE, NAME, settings_of(walk), of_stream=True)
    # Otherwise readers of the copy see its last entries only when others follow.
    showing = walk.another_client(explicit_lac_interval_s=EXPLICIT_LAC_S)
    target = await open_namespace(showing, TARGET, create=True)
    copy = Copy(model, target, truncation=True)
    writer = await model.streams.open_writer(NAME)
    await model.append(writer)
    stop = asyncio.Event()
    mirror = copy.mirror(stop)
    lag, running = Lag(mirror), asyncio.ensure_future(mirror.run())
    try:
        for number in range(STEPS):
            writer = await write_some(model, writer, 1)
            await _until_copied(walk, copy, running)
            if number == STEPS // 2 and walk.chance.random() < 0.5:
                await mirror.keep()
                records, _, _ = await lag.measure()
                # The last entries may not be known as acknowledged, at the source or the copy.
                walk.between("the lag of a copy that follows", records, 0, model.count)
        await writer.close()
        await _until_copied(walk, copy, running)
        if walk.chance.random() < 0.3:
            await copy.once()
            writer = await model.streams.open_writer(NAME)
            await model.append(writer)
            await writer.close()
            overtaken = asyncio.wait_for(running, SOON_S)
            await walk.refused("a replication that was overtaken", overtaken, StreamFencedError,
                               NAME, known=False)  # fmt: skip
            await copy.once()
        else:
            segments = await _completed(model.streams, NAME)
            until = walk.stage.world.loop.time() + SOON_S
            while mirror.copied.segments < len(segments) and walk.stage.world.loop.time() < until:
                await asyncio.sleep(POLL_S)
            stop.set()
            await walk.in_time("the end of a replication", running, SOON_S)
            copy.check_lag(await lag.measure(), 0, "at the end")
            walk.same("the number of copied segments", mirror.copied.segments, len(segments))
            await mirror.close()
    finally:
        running.cancel()
        await asyncio.wait([running])
    await copy.compare("a copy that followed")
    await target.close()
    await model.streams.close()


async def _until_copied(walk: Walk, copy: Copy, running: asyncio.Future[None]) -> None:
    """Wait until readers of the copy see what readers of the source see, except the last entry.

    Bookies may learn that an entry is acknowledged only with the next one.
    """
    loop = walk.stage.world.loop
    until = loop.time() + SOON_S
    wanted = await read(copy.model)
    least = sum(one.position[:2] < wanted[-1].position[:2] for one in wanted)
    while True:
        if await copy.target.exists(NAME):
            found = await read(Model(walk, copy.target, NAME, copy.model.given))
            walk.same("the records of a copy so far", found[: len(wanted)], wanted[: len(found)])
            if len(found) >= least:
                return
        if running.done():
            await running  # It ended too early, and raises why.
        if loop.time() > until:
            what = f"a copy did not have {least} records within {SOON_S:g} s"
            walk.fail("a_quiet_cluster_costs_little", what)
            return
        await asyncio.sleep(POLL_S)


async def walk_topic_copies(walk: Walk) -> None:
    """Copy the partitions of a topic. The topic exists in the target when all are there."""
    settings = settings_of(walk)
    streams = await open_namespace(walk.client, SOURCE, create=True)
    target = await open_namespace(walk.client, TARGET, create=True)
    await streams.create_topic(NAME, PARTITIONS, settings=settings)
    names = [f"{NAME}/{number}" for number in range(PARTITIONS)]
    models = [Model(walk, streams, name, settings["txids"] == "given") for name in names]
    for model in models:
        writer = await write_some(model, await streams.open_writer(model.name), 2)
        await writer.close()
    topics = TopicCopies(streams, target)
    walk.same("the topics that cannot be copied", await topics.look(names), {})
    walk.same("the topics to come", await topics.upcoming(names), [NAME])
    walk.same("the topics to come of one partition", await topics.upcoming(names[:1]), [])
    for number, model in enumerate(models):
        await topics.make()
        walk.same("the topics that were made", topics.made, [])
        walk.same("whether the topic exists", await target.topics(), [])
        await Copy(model, target, truncation=False).once()
        await Copy(model, target, truncation=False).compare(f"partition {number}")
    await topics.make()
    walk.same("the topics that were made", topics.made, [NAME])
    walk.same("the topics of the target", await target.topics(), [NAME])
    copied = await target.topic(NAME)
    walk.same("the partitions of a copied topic", copied.partitions, PARTITIONS)
    again = TopicCopies(streams, target)
    walk.same("the topics that cannot be copied again", await again.look(names), {})
    await again.make()
    walk.same("the topics that were made again", again.made, [])
    await _other_topic(walk, streams, target)
    for namespace in (streams, target):
        await namespace.delete_topic(NAME)
        walk.same("the topics that are left", await namespace.topics(NAME), [])
        await namespace.close()


async def _other_topic(walk: Walk, streams: Namespace, target: Namespace) -> None:
    """A topic that the target has with other partitions, or as a stream, cannot be copied."""
    await streams.create_topic("other", PARTITIONS)
    if walk.chance.random() < 0.5:
        await target.create_topic("other", PARTITIONS + 1)
    else:
        await target.create_stream("other")
    names = [f"other/{number}" for number in range(PARTITIONS)]
    topics = TopicCopies(streams, target)
    refused = await topics.look(names)
    walk.same("the streams of a topic that cannot be copied", sorted(refused), names)
    for error in refused.values():
        if "other" not in str(error) or not error.outcome_known:
            walk.fail("errors_name_their_subject", f"a topic was not copied: {error!r}")
    await topics.make()
    walk.same("the topics that were made", topics.made, [])
