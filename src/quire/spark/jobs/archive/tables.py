"""Offloaded files as Delta and Iceberg tables, through their own libraries.

A table follows the manifests. Each file belongs to a numbered commit of the manifest. The
transaction that adds files also records the number of the last commit that the table has (Delta:
the version of an application; Iceberg: a property of the table). The next job therefore adds what a
killed job has missed, and nothing is added twice. The transaction also names the stream and the
positions of the first and the last record that it adds (`positions_of`), for readers of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire.errors import HistoryError, UsageError
from quire.spark.jobs.archive.manifest import (
    DATA,
    DATE,
    NO_DATE,
    HistoryFile,
    Manifest,
    OffloadHistory,
)
from quire.streams import DLSN
from quire.streams.read.arrow import ALL_COLUMNS, COLUMNS, schema

if TYPE_CHECKING:
    import pyarrow as pa

APPLICATION = "quire-offload"
COMMIT_PROPERTY = "quire.commit"
"""The prefix of the table property with the number of the last commit that the table has.

The rest of the name is the stream's life, because several streams may share a table.
"""
LAST_PROPERTY = "quire.last"
"""The prefix of the table property with the position of the last record that the table has.

The rest of the name is the stream's life. The numbers of commits begin again in another directory.
Tables of earlier versions lack it.
"""
DELTA_KEEPS = {"delta.deletedFileRetentionDuration": "interval 36500 days"}
"""The property of a Delta table that keeps VACUUM from deleting files of the archive.

VACUUM deletes files that OPTIMIZE has replaced, and all that the table never knew, such as the
manifests. It spares files that are younger than this.
"""
ICEBERG_KEEPS = {"gc.enabled": "false"}
"""The property of an Iceberg table that keeps it from deleting files of the archive.

Without it, expiring snapshots deletes files that rewrite_data_files has replaced.
"""
STREAM_FIELD, FIRST_FIELD, LAST_FIELD = "quire.stream", "quire.first", "quire.last"
"""The names under which a commit of a table has its stream and the positions of its records."""
FILES_PER_COMMIT = 1_000


def to_delta(history: OffloadHistory, manifest: Manifest, by_date: bool) -> int:
    """Add files of the history to the Delta table in the same directory, and return their number.

    The table is created if it does not exist. It is partitioned by date if all files are, and the
    next ones will be (`by_date`). Files that it has already are left out. The added
    files are durable in the table on return. Raises UsageError if the package deltalake is not
    installed, and HistoryError if the table could not be changed. The next job adds what is
    missing.
    """
    deltalake: Any = _import("deltalake", "deltalake")
    transaction: Any = import_module("deltalake.transaction")
    uri = history.store.uri.partition("?")[0]
    application = f"{APPLICATION}:{manifest.life}"
    columns = _columns(manifest.files)
    try:
        dated = by_date and _all_dated(manifest.files)
        deltalake.DeltaTable.create(
            uri,
            _with_date(schema(columns)) if dated else schema(columns),
            mode="ignore",
            name=manifest.stream.replace("/", "_"),
            partition_by=[DATE] if dated else None,
            configuration=DELTA_KEEPS,
        )
        table = deltalake.DeltaTable(uri)
        if not DELTA_KEEPS.keys() <= table.metadata().configuration.keys():
            # An earlier version created the table.
            table.alter.set_table_properties(DELTA_KEEPS)
            table = deltalake.DeltaTable(uri)
        known = table.transaction_version(application)
        missing = _behind(manifest, -1 if known is None else known)
        partitioned = table.metadata().partition_columns == [DATE]
        there = {field.name for field in table.schema().fields}
        if lacking := [name for name in _columns(missing) if name not in there]:
            table.alter.add_columns(list(deltalake.Schema.from_arrow(schema(lacking)).fields))
            table = deltalake.DeltaTable(uri)
        for files in _in_turns(missing):
            table.create_write_transaction(
                [_added(transaction, file, partitioned) for file in files],
                "append",
                table.schema(),
                partition_by=[DATE] if partitioned else None,
                commit_properties=deltalake.CommitProperties(
                    custom_metadata=positions_of(manifest.stream, files),
                    app_transactions=[deltalake.Transaction(application, files[-1].commit)],
                ),
            )
    except (deltalake.exceptions.DeltaError, OSError) as error:
        raise HistoryError(
            f"the Delta table {history.store.location()} was not brought up to date with the "
            f"offloaded files: {history.store.text_of(error)}",
            remedy="Run the job again. The files themselves are complete",
        ) from history.store.cause(error)
    return len(missing)


def _all_dated(files: Sequence[HistoryFile]) -> bool:
    """Return whether each of these files has records of one date only."""
    return all(file.date is not None for file in files)


def _with_date(of: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return of.append(pa.field(DATE, pa.date32()))


def _added(transaction: Any, file: HistoryFile, partitioned: bool) -> Any:
    least: dict[str, Any] = {"segment": file.first.lssn, "txid": file.txids[0]}
    greatest: dict[str, Any] = {"segment": file.last.lssn, "txid": file.txids[1]}
    if file.sequences[0] >= 0:
        least["sequence"], greatest["sequence"] = file.sequences
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": greatest}
    return transaction.AddAction(
        path=f"{DATA}/{file.name}",
        size=file.size_bytes,
        partition_values={DATE: None if file.date == NO_DATE else file.date} if partitioned else {},
        modification_time=0 if file.times_us is None else file.times_us[1] // 1_000,
        data_change=True,
        stats=json.dumps(stats),
    )


def to_iceberg(
    history: OffloadHistory,
    manifest: Manifest,
    table: str,
    catalog: Mapping[str, str],
    by_date: bool,
) -> int:
    """Add the files that the Iceberg table does not have yet, and return their number.

    The table and its namespace are created if they do not exist. The table is partitioned by the
    day of `time` in the cases in which `to_delta` partitions its table. `catalog` has the
    properties of the catalog for pyiceberg. Its key `name` selects a catalog in pyiceberg's
    configuration. The files are durable in the table on return. Raises UsageError and HistoryError
    as `to_delta` does.
    """
    above = table.rpartition(".")[0]
    if not above:
        raise UsageError(
            f"{table!r} is not the name of an Iceberg table", remedy="Use NAMESPACE.NAME"
        )
    load_catalog: Any = _import("pyiceberg.catalog", "'pyiceberg[pyarrow]'").load_catalog
    properties = dict(catalog)
    name = properties.pop("name", None)
    life = manifest.life.rpartition("/")[2]
    mark, last_mark = f"{COMMIT_PROPERTY}.{life}", f"{LAST_PROPERTY}.{life}"
    try:
        opened = load_catalog(name, **properties)
        opened.create_namespace_if_not_exists(above)
        if not opened.table_exists(table):
            _create_iceberg(opened, table, manifest.files, by_date)
        found = opened.load_table(table)
        if not ICEBERG_KEEPS.keys() <= found.properties.keys():
            with found.transaction() as change:
                change.set_properties(ICEBERG_KEEPS)
        last = found.properties.get(last_mark)
        if last is None:
            missing = _behind(manifest, int(found.properties.get(mark, -1)))
        else:
            missing = _after(manifest, DLSN.parse(last), table)
        there = {field.name for field in found.schema().fields}
        if lacking := [name for name in _columns(missing) if name not in there]:
            with found.update_schema() as update:
                update.union_by_name(schema(lacking))
        if not (by_date and _all_dated(missing)):
            _require_unpartitioned(table, found, manifest.stream)
        for files in _in_turns(missing):
            with found.transaction() as change:
                change.add_files(
                    [_iceberg_path(history, file) for file in files],
                    snapshot_properties=positions_of(manifest.stream, files),
                )
                change.set_properties({mark: str(files[-1].commit), last_mark: str(files[-1].last)})
        if last is None and manifest.files and not missing:
            with found.transaction() as change:
                change.set_properties({last_mark: str(manifest.files[-1].last)})
    except Exception as error:
        # The errors of pyiceberg have no common base class.
        if not (type(error).__module__.startswith("pyiceberg") or isinstance(error, OSError)):
            raise
        raise HistoryError(
            f"the Iceberg table {table} was not brought up to date with the offloaded files: "
            f"{history.store.text_of(error)}",
            remedy="Run the job again. The files themselves are complete",
        ) from history.store.cause(error)
    return len(missing)


def _create_iceberg(catalog: Any, table: str, files: Sequence[HistoryFile], by_date: bool) -> None:
    """Create the table, partitioned by the day of `time` if the files are."""
    transforms: Any = import_module("pyiceberg.transforms")
    with catalog.create_table_transaction(table, schema(_columns(files))) as change:
        if by_date and _all_dated(files):
            with change.update_spec() as update:
                update.add_field("time", transforms.DayTransform(), DATE)


def _require_unpartitioned(table: str, found: Any, stream: str) -> None:
    """Raise UsageError if the table is partitioned: files with several dates do not fit into it."""
    if not found.spec().is_unpartitioned():
        raise UsageError(
            f"the Iceberg table {table} is partitioned, and the archive of stream {stream} is not",
            remedy="Offload the stream with --partition-by date to a new directory, or use "
            "another table",
        )


def _iceberg_path(history: OffloadHistory, file: HistoryFile) -> str:
    location = history.location(file.name)
    return f"file://{location}" if history.store.is_local else location


def positions_of(stream: str, files: Sequence[HistoryFile]) -> dict[str, str]:
    """Return the properties of the commit that adds these files.

    The positions are those of the first and the last record. Between them the files have all
    records of the stream, except those that the manifest names as gaps.
    """
    return {
        STREAM_FIELD: stream,
        FIRST_FIELD: str(files[0].first),
        LAST_FIELD: str(files[-1].last),
    }


def _columns(files: Sequence[HistoryFile]) -> tuple[str, ...]:
    """Return the columns that a table of these files must have."""
    return ALL_COLUMNS if any(file.keyed for file in files) else COLUMNS


def _behind(manifest: Manifest, commit: int) -> list[HistoryFile]:
    """Return the files of the manifest whose commits come after `commit`."""
    return [file for file in manifest.files if file.commit > commit]


def _after(manifest: Manifest, last: DLSN, table: str) -> list[HistoryFile]:
    """Return the files of the manifest whose records come after the last one that a table has.

    Raises UsageError if a file has such records and others.
    """
    found = [file for file in manifest.files if file.last > last]
    if found and found[0].first <= last:
        raise UsageError(
            f"the Iceberg table {table} has the records of stream {manifest.stream} up to position "
            f"{last} from another directory, and one file of this directory has records before and "
            "after it",
            remedy="Offload to the former directory, or use another table",
        )
    return found


def _in_turns(files: Sequence[HistoryFile]) -> list[list[HistoryFile]]:
    """Divide files into groups of at least FILES_PER_COMMIT, without splitting a commit.

    The last group may be smaller. A commit is one of the manifest's.
    """
    turns: list[list[HistoryFile]] = []
    for file in files:
        last = turns[-1] if turns else []
        if not last or (len(last) >= FILES_PER_COMMIT and file.commit != last[-1].commit):
            turns.append([file])
        else:
            last.append(file)
    return turns


def _import(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"this table format needs the Python package {module}, which cannot be imported: "
            f"{error}",
            remedy=f"Install it with: pip install {package}",
        ) from None
