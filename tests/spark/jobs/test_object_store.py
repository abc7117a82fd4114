"""Offloaded history in an S3 store: moto's server, a process that this module starts.

It checks signatures and keys, and speaks to pyarrow over a real connection.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from pyspark.sql import SparkSession

from quire.blocking import Namespace
from quire.spark.jobs import ClusterOptions, history, offload
from quire.spark.jobs.archive import merge
from quire.spark.jobs.archive.manifest import DATA, OffloadHistory
from quire.spark.jobs.archive.store import ArchiveDirectory
from quire.spark.jobs.history import check_history
from quire.testing.cluster import LocalCluster
from tests.support.spark.offloads import NAMESPACE, facts, facts_of_rows
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark

BUCKET = "archives"
CALLS_WITHOUT_KEYS = 3
"""The number of calls that make the user, before the server begins to check keys."""
POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
}


@dataclass(frozen=True)
class Store:
    port: int
    key: str
    secret: str

    def uri(self, bucket: str = BUCKET, secret: str = "") -> str:
        keys = f"{self.key}:{quote(secret or self.secret, safe='')}"
        query = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{keys}@{bucket}/archive?{query}"

    def service(self, name: str) -> Any:
        return boto3.client(
            name,
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    log = tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environ = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(CALLS_WITHOUT_KEYS)}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
    assert server.stderr is not None
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if found := re.search(r"Running on http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            pytest.fail(f"the server did not start: {''.join(said)}")
        with log.open("wb") as rest:  # so that the pipe never fills up
            drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=rest)
        try:
            yield prepared(Store(int(found[1]), "anybody", "anything"))
        finally:
            server.terminate()
            server.wait()
            drain.wait()
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def prepared(store: Store) -> Store:
    """Return the store with the keys of a user that may do everything, and make the bucket."""
    users = store.service("iam")
    users.create_user(UserName="quire")
    keys = users.create_access_key(UserName="quire")["AccessKey"]
    users.put_user_policy(UserName="quire", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    known = Store(store.port, keys["AccessKeyId"], keys["SecretAccessKey"])
    known.service("s3").create_bucket(Bucket=BUCKET)
    return known


def test_an_archive_in_an_object_store_is_read_back(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Files and live records are read, once each, although Spark itself cannot read the store.

    The files are in directories of dates, and are merged later.
    """
    options = ClusterOptions(cluster.uri)
    append(streams, name, numbered(0, 400), segments=4)
    everything = facts(streams, name)
    where = (spark, options, NAMESPACE, name, store.uri())
    result = offload(*where, truncate=True, file_bytes=2_000, partition_by="date")
    assert (result.records, result.freed_ledgers) == (400, 3)
    assert result.files >= 4
    append(streams, name, numbered(400, 450))
    everything += facts(streams, name)

    def read(**bounds: Any) -> Any:
        found = history(*where, **bounds)
        return facts_of_rows(row.asDict() for row in found.orderBy("sequence").collect())

    assert read() == everything
    assert read(start="seq:130", end="seq:260") == everything[130:260]
    monkeypatch.setattr(merge, "FILES_MIN", 3)
    assert offload(*where, merge_below=1024 * 1024, truncate=True).merged_files >= 3
    assert read() == everything
    assert check_history(spark, name, store.uri()) == []
    manifest = OffloadHistory(store.uri(), name).newest()
    assert manifest is not None
    assert all(file.name.startswith(f"date={file.date}/") for file in manifest.files)
    assert len(manifest.files) <= 3  # Midnight may have passed.


@pytest.mark.long
def test_a_killed_upload_is_not_visible(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, store: Store
) -> None:
    """A task is killed when it has sent all of a file, but has not completed the upload."""
    options = ClusterOptions(cluster.uri)
    append(streams, name, numbered(0, 100))
    found = OffloadHistory(store.uri(), name)
    claim = found.claim()
    [segment] = streams.segments(name)
    piece = {
        "directory": store.uri(), "stream": name, "label": claim.label, "txid_is_time": True,
        "compression": "zstd", "by_date": False,
        "parts": [[segment.to_bytes().decode(), 0, segment.last_entry_id]],
    }  # fmt: skip
    program = (
        "import json, os, sys\n"
        "from quire.spark.jobs import ClusterOptions\n"
        "from quire.spark.jobs.archive import parquet_files\n"
        "parquet_files.Digest.texts = lambda self: os.kill(os.getpid(), 9)\n"
        "parquet_files.write_piece(ClusterOptions(sys.argv[1]), json.loads(sys.argv[2]))\n"
    )
    task = subprocess.run([sys.executable, "-c", program, cluster.uri, json.dumps(piece)])
    assert task.returncode == -signal.SIGKILL
    begun = store.service("s3").list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert [one["Key"] for one in begun if f"/{DATA}/" in one["Key"]]
    assert found.store.files(DATA) == {}
    assert offload(spark, options, NAMESPACE, name, store.uri()).records == 100
    manifest = found.newest()
    assert manifest is not None
    assert list(found.store.files(DATA)) == [file.name for file in manifest.files]
    assert history(spark, options, NAMESPACE, name, store.uri()).count() == 100


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"bucket": "absent"}, r"the bucket absent of the directory s3://absent/archive/.* does "),
        ({"secret": "mistyped"}, r"the file s3://archives/archive/.*/manifest cannot be read.*key"),
    ],
    ids=["bucket", "secret"],
)
def test_errors_are_one_line_without_the_keys(
    pipeline: Callable[..., tuple[int, str, str]], streams: Namespace, name: str, store: Store,
    wrong: dict[str, str], reason: str,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 10))
    where = ["-n", NAMESPACE, "--directory", store.uri(**wrong)]
    for command in (["offload", name], ["history", name]):
        status, out, err = pipeline(*command, *where)
        assert (status, out, err.count("\n")) == (1, "", 1), err
        assert re.search(reason, err), err
        assert store.key not in err
        assert store.secret not in err
        assert "mistyped" not in err
    assert len(facts(streams, name)) == 10


def test_uris_lose_their_keys_for_spark_and_messages() -> None:
    directory = ArchiveDirectory("s3://key:secret@bucket/archive?region=us-east-1").below("a")
    assert directory.spark_path("x") == "s3a://bucket/archive/a/x"
    assert directory.location("x") == "s3://bucket/archive/a/x"
    assert directory.location() == "s3://bucket/archive/a"
