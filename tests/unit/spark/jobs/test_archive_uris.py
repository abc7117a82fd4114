"""Errors and results of jobs with directories whose URIs have credentials."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from quire.errors import HistoryDamagedError, HistoryError, UsageError
from quire.spark.jobs.archive import parquet_files, tables
from quire.spark.jobs.archive.manifest import Manifest, OffloadHistory
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.spark.jobs.archive.versions import Version
from quire.streams import DLSN

# The package has functions of the same names.
compact, ingest, history = (
    importlib.import_module(f"quire.spark.jobs.{name}") for name in ("compact", "ingest", "history")
)

URI = "s3://user:secret@bucket/x?sig=secret"
SHOWN = "s3://bucket/x"


def shown(error: BaseException) -> str:
    """Return the error with its traceback, which has no credentials."""
    text = "".join(traceback.format_exception(error)).split("Traceback (most recent call last)")
    texts = "\n".join(line for part in text for line in part.splitlines() if line[:1] != " ")
    assert "secret" not in texts + str(error) + str(getattr(error, "remedy", ""))
    return str(error)


@pytest.mark.parametrize(
    "uri",
    [
        "foo://user:secret@host/x",
        "foo://host/x?sig=secret",
        "s3://AK:secret@bucket/x?sig=secret",
        "s3://AK:sec/secret@bucket/x",
        "s3://AK:sec secret@bucket/x",
        "gs://bucket/x?token=secret",
    ],
)
def test_a_directory_with_an_unknown_scheme_is_refused_without_its_keys(uri: str) -> None:
    with pytest.raises(UsageError, match="because neither library supports such a URI") as caught:
        ArchiveDirectory(uri)
    assert "cannot be reached" not in shown(caught.value)


@pytest.mark.parametrize("uri", ["s3://bucket/x/", "s3://bucket/x/?region=eu", "s3://bucket/x?r=e"])
def test_a_trailing_slash_of_a_directory_is_ignored(uri: str) -> None:
    """Delta and Iceberg looked for the files in a directory with two slashes before it."""
    directory = ArchiveDirectory(uri, fs.SubTreeFileSystem("/", fs.LocalFileSystem()))
    below = directory.below("orders")
    assert below.location("data/1") == "s3://bucket/x/orders/data/1"
    assert below.uri.partition("?")[2] == uri.partition("?")[2]


def test_an_unreachable_directory_is_reported_without_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(uri: str) -> Any:
        raise OSError(f"no route to {uri}")

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=away))
    with pytest.raises(HistoryError, match=f"{SHOWN} cannot be reached: no route to") as caught:
        ArchiveDirectory(URI)
    shown(caught.value)


def test_a_directory_unreachable_by_fsspec_is_reported_without_its_keys() -> None:
    with pytest.raises(HistoryError, match=r"ftp://127\.0\.0\.1:1/x cannot be reached") as caught:
        ArchiveDirectory("ftp://user:secret@127.0.0.1:1/x?sig=secret")
    shown(caught.value)


@pytest.fixture
def broken() -> OffloadHistory:
    """The history in a store that fails, and whose URI has credentials."""

    def fail(*_: object, **__: object) -> Any:
        raise OSError(f"no answer of {URI}")

    failing = SimpleNamespace(
        type_name="s3", get_file_info=fail, create_dir=fail, open_input_stream=fail,
        open_output_stream=fail, delete_file=fail, open_input_file=fail, delete_dir=fail,
    )  # fmt: skip
    directory = ArchiveDirectory("x", failing)
    directory.uri = URI
    return OffloadHistory(directory, "orders")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.files("data"),
        lambda store: store.size("data"),
        lambda store: store.make("data"),
        lambda store: store.read("data"),
        lambda store: store.crc("data"),
        lambda store: store.write("data", b""),
        lambda store: store.remove("data"),
        lambda store: store.directories("data"),
        lambda store: store.remove_directory("data"),
    ],
)
def test_an_unusable_file_is_reported_without_its_keys(
    call: Callable[[ArchiveDirectory], object], broken: OffloadHistory
) -> None:
    with pytest.raises(HistoryError, match=f"no answer of {SHOWN}") as caught:
        call(broken.store)
    assert f"{SHOWN}/orders/data" in shown(caught.value)


def test_an_unreadable_parquet_file_is_reported_without_its_keys(
    broken: OffloadHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise OSError(f"no answer of {URI}")

    monkeypatch.setattr(parquet_files, "_read_file", fail)
    with pytest.raises(HistoryDamagedError, match=f"no answer of {SHOWN}") as caught:
        list(parquet_files.read_file(broken, "1.parquet"))
    shown(caught.value)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_unchangeable_table_is_reported_without_its_keys(
    kind: str, broken: OffloadHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(f"no answer of {URI}")

    library = SimpleNamespace(
        DeltaTable=SimpleNamespace(create=fail),
        exceptions=SimpleNamespace(DeltaError=ValueError),
        load_catalog=fail,
    )
    monkeypatch.setattr(tables, "_import", lambda *_: library)
    monkeypatch.setattr(tables, "import_module", lambda _: library)
    nothing = DLSN(0, 0, 0)
    manifest = Manifest("c", "/n", "orders", "/life", nothing, nothing)
    changes: dict[str, Callable[[], int]] = {
        "delta": lambda: tables.to_delta(broken, manifest, False),
        "iceberg": lambda: tables.to_iceberg(broken, manifest, "a.b", {"uri": URI}, False),
    }
    with pytest.raises(HistoryError, match=f"no answer of {SHOWN}") as caught:
        changes[kind]()
    shown(caught.value)


def test_a_missing_history_is_reported_without_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = SimpleNamespace(newest=lambda: None)
    monkeypatch.setattr(history, "OffloadHistory", lambda *_: empty)
    spark: Any = None
    with pytest.raises(UsageError, match=f"was offloaded to {SHOWN}") as caught:
        history.check_history(spark, "orders", URI)
    shown(caught.value)


def test_errors_of_a_compaction_have_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    newest = SimpleNamespace(newest=lambda: None)
    monkeypatch.setattr(compact, "Versions", lambda *_: newest)
    spark: Any = None
    with pytest.raises(UsageError, match=f"the directory {SHOWN} holds no") as caught:
        compact.compacted(spark, URI)
    found.append(caught.value)
    with pytest.raises(UsageError, match=f"the target {SHOWN} was compacted with") as caught:
        compact._check_made_of(URI, {"stream": "a"}, {"stream": "b"})
    found.append(caught.value)
    span = SimpleNamespace(start=DLSN(0, 0, 0), end=SimpleNamespace(position=1), empty=True)
    versions = SimpleNamespace(
        newest=lambda: None, claim=lambda: SimpleNamespace(former=Version("a"))
    )
    monkeypatch.setattr(compact, "Versions", lambda *_: versions)
    source: Any = SimpleNamespace(span=lambda *_: span)
    with pytest.raises(UsageError, match=f"another run has compacted to {SHOWN} in") as caught:
        compact._to_table(spark, source, URI, False, False, compact.silent)
    found.append(caught.value)
    for error in found:
        shown(error)


def test_the_result_of_a_compaction_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    span = SimpleNamespace(
        start=DLSN(0, 0, 0), end=SimpleNamespace(position=DLSN(1, 0, 0)), records=0
    )
    source: Any = SimpleNamespace(stream="orders", span=lambda *_: span)
    assert compact._result(source, URI, span, 0).target == SHOWN
    monkeypatch.setattr(compact, "source_of", lambda *_: source)
    monkeypatch.setattr(compact, "Versions", lambda *_: None)
    monkeypatch.setattr(compact, "table_reached", lambda *_: (None, None))
    assert compact.preview_compact(source, "orders", source, to=URI).target == SHOWN


def test_missing_files_are_reported_without_their_keys() -> None:
    rows = SimpleNamespace(selectExpr=lambda *_: SimpleNamespace(collect=list))
    reader = SimpleNamespace(load=lambda _: rows, options=lambda: reader)
    spark: Any = SimpleNamespace(read=SimpleNamespace(format=lambda _: reader))
    files = ingest.Files(("s3a://user:secret@bucket/part-?.json",))
    with pytest.raises(UsageError, match=r"no file matches s3a://bucket/part-\?\.json") as caught:
        ingest.list_files(spark, files)
    shown(caught.value)


def test_the_result_of_following_files_has_no_keys() -> None:
    query = SimpleNamespace(awaitTermination=lambda _: True, recentProgress=())
    target = SimpleNamespace(namespace="/n")
    stop = SimpleNamespace(is_set=lambda: False)
    result = ingest._watch(query, target, URI, stop, ingest.silent, available_now=True)
    assert result.checkpoint == SHOWN
