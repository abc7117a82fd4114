"""The writer as Spark uses it, without a JVM: drivers that die, pause and come back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from quire import blocking
from quire.blocking import Datasets
from quire.client.datasets.unpublished import OWNER_KEY
from quire.errors import MetadataUnavailableError, NoSuchKeyError, UsageError
from quire.spark import sweep_orphans
from quire.spark.ledgers import writer as module
from quire.spark.ledgers.writer import LedgerMessage, QuireWriter
from quire.spark.options import WriteOptions
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("value", BinaryType())])


class Driver:
    """One run of a driver program, with its tasks."""

    def __init__(self, cluster: LocalCluster, name: str, **options: object) -> None:
        self.overwrite = bool(options.pop("overwrite", False))
        given = {"metadata": cluster.uri, "dataset": name, **options}
        parsed = WriteOptions.parse({key: str(value) for key, value in given.items()})
        # Spark hands out copies.
        self.writer = pickle.loads(pickle.dumps(QuireWriter(parsed, SCHEMA, self.overwrite)))
        self.messages: list[LedgerMessage | None] = []

    def task(self, values: Iterable[bytes], partition: int = 0, attempt: int = 0) -> Driver:
        batch = pa.RecordBatch.from_arrays([pa.array(list(values), pa.binary())], ["value"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "task", lambda: (partition, attempt))
            self.messages.append(self.writer.write(iter([batch.slice(0, 1), batch.slice(1)])))
        return self

    def commit(self) -> None:
        self.writer.commit(self.messages)

    def abort(self) -> None:
        self.writer.abort(self.messages)

    @property
    def ledgers(self) -> list[int]:
        return [m.ledger_id for m in self.messages if m is not None and m.ledger_id is not None]


Start = Callable[..., Driver]


@pytest.fixture
def start(cluster: LocalCluster, client: blocking.Client, name: str) -> Start:
    return lambda **options: Driver(cluster, name, **options)


@pytest.fixture
def values(client: blocking.Client, datasets: Datasets, name: str) -> Callable[[], list[bytes]]:
    """Return what a reader of the dataset sees."""

    def read() -> list[bytes]:
        found = []
        for part in datasets.read(name).ledgers:
            with client.open_ledger(part.ledger_id) as ledger:
                found += [entry.payload for entry in ledger.read(part.first, part.last)]
        return found

    return read


def exists(client: blocking.Client, ledger_id: int) -> bool:
    return ledger_id in client.list_ledgers()


Values = Callable[[], list[bytes]]


def test_partitions_are_published_in_order(start: Start, values: Values) -> None:
    driver = start()
    for partition in (2, 0, 1):
        driver.task([b"a%d" % partition, b"b%d" % partition], partition)
    driver.commit()
    assert values() == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


def test_task_messages_describe_the_written_entries(start: Start) -> None:
    (message,) = start().task([b"abc", b"", b"de"], 4, 1).messages
    assert message is not None
    assert (message.partition, message.attempt) == (4, 1)
    assert (message.last_entry, message.rows, message.bytes) == (2, 3, 5)
    (message,) = start().task([]).messages
    assert message == LedgerMessage(0, 0)


def test_no_row_is_visible_before_the_commit(
    start: Start, values: Values, client: blocking.Client
) -> None:
    driver = start().task([b"a"])
    with pytest.raises(NoSuchKeyError):
        values()
    assert exists(client, driver.ledgers[0])
    driver.commit()
    assert values() == [b"a"]


def test_abort_deletes_unpublished_ledgers(
    start: Start, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    driver = start().task([b"a"]).task([b"b"], 1)
    driver.messages.append(None)  # a task that failed
    driver.abort()
    assert not any(exists(client, ledger_id) for ledger_id in driver.ledgers)
    assert name not in datasets.list_datasets()
    driver.abort()  # again does no harm


def test_abort_after_commit_keeps_published_ledgers(start: Start, values: Values) -> None:
    driver = start().task([b"a"])
    driver.commit()
    driver.abort()
    assert values() == [b"a"]


def test_commit_after_abort_publishes_no_deleted_ledger(
    start: Start, datasets: Datasets, name: str
) -> None:
    driver = start().task([b"a"])
    driver.abort()
    with pytest.raises(Exception, match="it was never created, or it was deleted"):
        driver.commit()
    assert name not in datasets.list_datasets()


def test_a_repeated_commit_publishes_once(start: Start, values: Values) -> None:
    driver = start().task([b"a"])
    driver.commit()
    driver.commit()
    assert values() == [b"a"]


def test_a_replaced_driver_with_the_same_transaction_publishes_nothing(
    start: Start, values: Values, client: blocking.Client
) -> None:
    """The first driver sleeps before its commit; the second is started in its place."""
    zombie = start(txnId="t").task([b"zombie"])
    driver = start(txnId="t").task([b"second"])
    driver.commit()
    zombie.commit()
    assert values() == [b"second"]
    assert not exists(client, zombie.ledgers[0])
    zombie.abort()
    assert values() == [b"second"]
    assert exists(client, driver.ledgers[0])


def test_a_replaced_driver_does_not_overwrite_a_later_job(
    start: Start, values: Values, client: blocking.Client
) -> None:
    zombie = start(txnId="t1", overwrite=True).task([b"zombie"])
    start(txnId="t1", overwrite=True).task([b"first"]).commit()
    later = start(txnId="t2", overwrite=True).task([b"later"])
    later.commit()
    zombie.commit()
    assert values() == [b"later"]
    assert not exists(client, zombie.ledgers[0])


def test_a_restarted_driver_does_not_write_published_rows_again(
    start: Start, values: Values, client: blocking.Client
) -> None:
    start(txnId="t").task([b"a"]).commit()
    again = start(txnId="t").task([b"b"])
    assert again.ledgers == []
    again.commit()
    again.abort()
    assert values() == [b"a"]


def test_a_commit_with_lost_replies_survives_the_abort(
    start: Start, values: Values, client: blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication is made, no answer comes, the driver gives up; nothing is lost by the abort
    that follows."""
    driver = start().task([b"a"])
    publish = Datasets.publish

    def lost(self: Datasets, *arguments: object, **options: object) -> None:
        publish(self, *arguments, **options)
        raise MetadataUnavailableError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Datasets, "publish", lost)
        with pytest.raises(MetadataUnavailableError):
            driver.commit()
    driver.abort()
    assert values() == [b"a"]


def test_a_failed_cleanup_does_not_fail_the_job(
    start: Start, values: Values, client: blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset is published: the job succeeded. The sweep finds what is left."""
    old = start().task([b"old"])
    old.commit()
    driver = start(overwrite=True).task([b"new"])

    def fails(*_: object) -> None:
        raise MetadataUnavailableError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(Datasets, "discard", fails)
        driver.commit()
    assert values() == [b"new"]
    assert exists(client, old.ledgers[0])
    assert old.ledgers[0] in sweep_orphans(client, 0)
    assert not exists(client, old.ledgers[0])
    assert values() == [b"new"]


def test_the_sweep_spares_young_and_foreign_ledgers(
    start: Start, client: blocking.Client, name: str
) -> None:
    driver = start().task([b"a"])
    with client.create_ledger() as foreign:
        foreign.append(b"x")
    assert sweep_orphans(client, 3600, dataset=name) == []
    assert sweep_orphans(client, 0, dataset="another") == []
    assert sweep_orphans(client, 0, dataset=name) == driver.ledgers
    assert exists(client, foreign.ledger_id)


def test_a_sweep_for_a_name_that_is_no_path_is_refused(client: blocking.Client) -> None:
    """It would delete nothing, and not say so."""
    with pytest.raises(UsageError, match="must be the path of a stream"):
        sweep_orphans(client, 0, stream="orders")


def test_replaced_ledgers_of_other_writers_are_kept(
    start: Start, values: Values, client: blocking.Client, datasets: Datasets, name: str
) -> None:
    """A ledger that was published by hand was not written for the dataset."""
    from quire.client.datasets.format import DatasetLedger

    with client.create_ledger() as mine:
        mine.append(b"mine")
    datasets.publish(name, [DatasetLedger(mine.ledger_id, 0, 0, 1, 4)])
    assert OWNER_KEY not in client.ledger_metadata(mine.ledger_id).custom
    start(overwrite=True).task([b"new"]).commit()
    assert values() == [b"new"]
    assert exists(client, mine.ledger_id)


def test_a_writer_shows_no_password(start: Start) -> None:
    driver = start(password="hunter2").task([b"a"])
    shown = f"{driver.writer._options} {driver.messages} {vars(driver.writer)}"
    assert "hunter2" not in shown
