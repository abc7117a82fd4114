"""The HTTP API of real processes.

The tests cover a cluster's routes in Apache's and our forms, its metrics, and the command line.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.blocking import connect
from quire.testing._process import quire_command
from quire.testing.cluster import LocalCluster
from tests.support.bookies.bookie import free_port
from tests.support.processes.cli import Quire
from tests.support.processes.http import TOKEN, WAIT_S, Http, url_in
from tests.support.waiting import wait_for

ENTRIES = 250


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    arguments = ["--http", "127.0.0.1:0", "--set", "min_free_bytes=0"]
    with LocalCluster(4, bookie_args=arguments, http_token=TOKEN) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(url_in(cluster.bookies[0].log_path), TOKEN)


@pytest.fixture(scope="module")
def ledger(cluster: LocalCluster) -> int:
    with connect(cluster.uri) as client:
        with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many([f"entry {n}".encode() for n in range(ENTRIES)])
            ledger_id: int = writer.ledger_id
        return ledger_id


def test_the_bookie_reports_its_state(http: Http, cluster: LocalCluster) -> None:
    own = cluster.bookies[0]
    assert http.get("/heartbeat") == "OK\n"
    assert http.get("/api/v1/bookie/is_ready") == "OK"
    assert http.get("/api/v1/bookie/state") == {
        "running": True, "readOnly": False, "shuttingDown": False,
        "availableForHighPriorityWrites": True, "loadedPercent": 100,
    }  # fmt: skip
    assert http.get("/api/v1/bookie/sanity") == {"passed": True, "readOnly": False}
    info = http.get("/api/v1/bookie/info")
    assert 0 < info["freeSpace"] < info["totalSpace"]
    assert http.get("/api/v1/config/server_config")["min_free_bytes"] == 0
    (mark,) = http.get("/api/v1/bookie/last_log_mark").items()
    assert re.fullmatch(r"LastLogMark: Journal Id - \d+\([0-9a-f]+\.txn\)", mark[0])
    assert re.fullmatch(r"Pos - \d+", mark[1])
    files = http.get("/api/v1/bookie/list_disk_file")
    assert all((own.directory / name).exists() for name in files["entrylog files"].split())
    assert set(http.get("/api/v1/bookie/list_disk_file?file_type=index")) == {"index files"}
    assert http("PUT", "/api/v1/bookie/gc") == (200, f"Triggered GC on BookieServer: {own.id}")
    assert http.get("/api/v1/bookie/gc")["is_in_force_gc"] in ("true", "false")
    assert http.get("/api/v1/bookie/gc_details")[0]["majorCompactionCounter"] == 0
    quire = Quire(cluster.uri)
    quire("cluster", "gc", "off").ok()
    status, answer = http("PUT", "/api/v1/bookie/gc")
    assert status == 409
    assert "switched off for the whole cluster" in answer["error"]["what"]
    off = 'quire_bookie_garbage_collection_off{reason="switch"}'
    assert f"{off} 1" in http.get("/metrics")
    quire("cluster", "gc", "on").ok()
    assert http("PUT", "/api/v1/bookie/gc")[0] == 200
    for path in ("expand_storage", "entry_location_compact"):
        status, answer = http("PUT", f"/api/v1/bookie/{path}")
        assert status == 501
        assert answer["error"]["remedy"]


def test_compaction_is_suspended_and_resumed_with_apaches_routes(
    http: Http, cluster: LocalCluster
) -> None:
    own, path = cluster.bookies[0], "/api/v1/bookie/gc"
    none = {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
    assert http.get(f"{path}/suspend_compaction") == none
    status, refused = http("PUT", f"{path}/suspend_compaction", {"suspendMajor": False})
    assert (status, refused["error"]["kind"]) == (400, "UsageError")
    said = http("PUT", f"{path}/suspend_compaction", {"suspendMajor": True})
    assert said == (200, f"Suspend majorGC on BookieServer: {own.id}")
    http("PUT", f"{path}/suspend_compaction", {"suspendMinor": True, "by": "me"})
    found = http.get(f"{path}/suspend_compaction")
    assert (found["isMajorGcSuspended"], found["isMinorGcSuspended"]) == ("true", "true")
    assert found["by"] == f"http.{own.id}"  # The process that began it.
    metrics = http.get("/metrics")
    assert 'quire_storage_compaction_suspended{kind="major"} 1' in metrics
    what = f"Major and minor compaction of {own.id} is suspended"
    wait_for(lambda: what in str(http.get("/api/v1/quire/overview")["problems"]))
    said = http("PUT", f"{path}/resume_compaction", {"resumeMajor": True, "resumeMinor": True})
    assert said[0] == 200
    assert http.get(f"{path}/suspend_compaction") == none
    assert http("PUT", f"{path}/resume_compaction", {})[0] == 400


def test_a_forced_compaction_runs_and_reports_its_end(tmp_path: Path) -> None:
    gc = "/api/v1/bookie/gc"
    settings = ["segment_bytes=4m", "min_free_bytes=0", "compact_bytes_per_s=0"]
    arguments = ["--http", "127.0.0.1:0", *(word for one in settings for word in ("--set", one))]
    with LocalCluster(1, bookie_args=arguments, directory=tmp_path, http_token=TOKEN) as cluster:
        http = Http(url_in(cluster.bookies[0].log_path), TOKEN)
        with connect(cluster.uri) as client:
            options = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
            with client.create_ledger(**options) as kept, client.create_ledger(**options) as gone:
                for _ in range(40):
                    kept.append(b"k" * 100_000)
                    gone.append(b"g" * 100_000)
            client.delete_ledger(gone.ledger_id)
            assert http("PUT", gc, {"forceMajor": True})[0] == 200
            wait_for(lambda: http.get(gc) == {"is_in_force_gc": "false"})
            (details,) = http.get("/api/v1/bookie/gc_details")
            assert details["majorCompactionCounter"] >= 1, details
            assert details["freedBytes"] > 1_000_000
            assert len(list(client.open_ledger(kept.ledger_id).read())) == 40
        http("PUT", f"{gc}/suspend_compaction", {"suspendMajor": True, "by": "me"})
        status, refused = http("PUT", gc, {"forceMajor": True})
        assert status == 400
        assert "suspended by me" in refused["error"]["what"]
        remedy = refused["error"]["remedy"]
        asked = re.search(r"PUT (\S+/resume_compaction) and the body ({.*}), and repeat", remedy)
        assert asked is not None, remedy
        assert http("PUT", asked[1], json.loads(asked[2]))[0] == 200
        assert http("PUT", gc, {"forceMajor": True})[0] == 200


def test_the_cluster_is_reported_by_apaches_routes(
    http: Http, cluster: LocalCluster, ledger: int
) -> None:
    ids = {bookie.id for bookie in cluster.bookies}
    assert http.get("/api/v1/bookie/list_bookies") == dict.fromkeys(ids)
    named = http.get("/api/v1/bookie/list_bookies/?type=rw&print_hostnames=true")
    assert named == dict.fromkeys(ids, "127.0.0.1")
    assert http.get("/api/v1/bookie/list_bookies?type=ro") == {}
    spaces = http.get("/api/v1/bookie/list_bookie_info")
    assert set(spaces) == {*ids, "clusterInfo"}
    total = sum(spaces[one]["total"] for one in ids)
    assert spaces["clusterInfo"]["total"] == total
    info = http.get("/api/v1/bookie/cluster_info")
    assert info["totalBookiesCount"] == info["writableBookiesCount"] == 4
    assert (info["auditorElected"], info["clusterUnderReplicated"]) == (False, False)
    assert str(ledger) in http.get("/api/v1/ledger/list")
    listed = http.get("/api/v1/ledger/list?print_metadata=true&page=1")[str(ledger)]
    assert listed == http.get(f"/api/v1/ledger/metadata?ledger_id={ledger}")[str(ledger)]
    assert listed["lastEntryId"] == ENTRIES - 1
    assert listed["state"] == "CLOSED"
    assert "password" not in listed
    assert http.get("/api/v1/ledger/list?print_metadata=true&page=99") == {}
    read = http.get(f"/api/v1/ledger/read?ledger_id={ledger}&start_entry_id=3&end_entry_id=4")
    assert read == {"3": "entry 3", "4": "entry 4"}
    assert len(http.get(f"/api/v1/ledger/read?ledger_id={ledger}")) == ENTRIES
    assert len(http.get(f"/api/v1/ledger/read?ledger_id={ledger}&page=1")) == ENTRIES
    assert http.get(f"/api/v1/ledger/read?ledger_id={ledger}&page=2") == {}
    status, answer = http("GET", f"/api/v1/ledger/read?ledger_id={ledger}&start_entry_id=999999")
    assert (status, answer) == (200, {})
    for path in ("metadata", "read"):
        status, answer = http("GET", f"/api/v1/ledger/{path}?ledger_id=123456789")
        assert status == 404
        assert answer["error"]["code"] == -25


def test_autorecovery_is_controlled_by_apaches_routes(http: Http) -> None:
    prefix = "/api/v1/autorecovery"
    assert http("PUT", f"{prefix}/status?enabled=false") == (200, {"enabled": False})
    assert http.get(f"{prefix}/status") == {"enabled": False}
    assert http("PUT", f"{prefix}/status?enabled=true") == (200, {"enabled": True})
    assert http("PUT", f"{prefix}/status")[0] == 400
    delay = f"{prefix}/lost_bookie_recovery_delay"
    assert http("PUT", delay, {"delay_seconds": 7}) == (200, {"delay_seconds": 7})
    assert http.get(delay) == {"delay_seconds": 7}
    assert http("PUT", delay, {"delay_seconds": -1})[0] == 400
    assert http("PUT", f"{prefix}/trigger_audit") == (200, "Success trigger audit.")
    assert http("GET", f"{prefix}/who_is_auditor")[0] == 404
    assert http("GET", f"{prefix}/list_under_replicated_ledger")[0] == 404


def test_quires_own_routes_return_their_pages(
    http: Http, cluster: LocalCluster, ledger: int
) -> None:
    prefix = "/api/v1/quire"
    assert http.get(f"{prefix}/cluster")["writable"] == 4
    seen: list[str] = []
    after = ""
    while True:
        page = http.get(f"{prefix}/bookies?limit=3{after}")
        seen += [one["id"] for one in page["bookies"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == sorted(bookie.id for bookie in cluster.bookies)
    own = next(
        one for one in http.get(f"{prefix}/bookies")["bookies"] if one["http"][0] == http.url
    )
    assert own["id"] == cluster.bookies[0].id
    with connect(cluster.uri) as client:
        more = []
        for _ in range(5):
            with client.create_ledger() as writer:
                more.append(writer.ledger_id)
    found: list[int] = []
    after = ""
    while True:
        page = http.get(f"{prefix}/ledgers?limit=2{after}")
        assert len(page["ledgers"]) <= 2
        found += [one["ledger_id"] for one in page["ledgers"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert found == sorted({*more, ledger})
    assert http.get(f"{prefix}/ledgers/{ledger}")["last_entry_id"] == ENTRIES - 1
    last = http.get(f"{prefix}/ledgers?after={2**63 - 1}")
    assert (last["ledgers"], last["next"]) == ([], None)
    explained = http.get(f"{prefix}/ledgers/{ledger}/explain?deep=true")
    assert explained["verdict"]["sentence"]
    assert explained["segments"][0]["copies_min"] == 3
    assert http.get(f"{prefix}/marked") == {"ledgers": [], "next": None}
    assert http("DELETE", f"/api/v1/ledger/delete?ledger_id={more[0]}") == (
        200, f"Deleted ledger: {more[0]}",
    )  # fmt: skip
    assert http("DELETE", f"/api/v1/ledger/delete?ledger_id={more[0]}")[0] == 404
    assert http("GET", f"{prefix}/ledgers/{more[0]}")[0] == 404


def test_streams_are_listed_over_http(http: Http, cluster: LocalCluster) -> None:
    prefix = "/api/v1/quire"
    assert http("GET", f"{prefix}/streams")[0] == 404
    for command in (["namespace", "create", "/streams"], ["stream", "create", "orders"]):
        subprocess.run(
            quire_command(*command, "--metadata", cluster.uri), check=True, timeout=WAIT_S
        )
    subprocess.run(
        quire_command("stream", "write", "orders", "--metadata", cluster.uri),
        input=b"a\nb\n", check=True, timeout=WAIT_S, capture_output=True,
    )  # fmt: skip
    listed = {"streams": ["orders"], "topics": [], "unreadable": "", "next": None}
    assert http.get(f"{prefix}/streams") == listed
    stream = http.get(f"{prefix}/stream?name=orders")
    assert stream["records"] == 2
    assert stream["segments"][0]["state"] == "completed"
    assert http("GET", f"{prefix}/stream?name=none")[0] == 404


def test_the_metrics_count_the_operations(cluster: LocalCluster, ledger: int) -> None:
    servers = [Http(url_in(bookie.log_path)) for bookie in cluster.bookies]
    before = [one.metrics() for one in servers]
    payloads = [bytes(100)] * 300
    with connect(cluster.uri) as client:
        with client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4) as writer:
            writer.append_many(payloads)
            ledger_id = writer.ledger_id
            assert "quire_client_adds_total 300\n" in client.metrics()
        with client.open_ledger(ledger_id, recover=True) as reader:
            assert len(list(reader.read())) == 300
    reads = 0.0
    for server, old in zip(servers, before, strict=True):
        new = server.metrics()
        more = {name: value - old.get(name, 0) for name, value in new.items()}
        for name in ("bookkeeper_server_ADD_ENTRY_REQUEST", "bookie_journal_JOURNAL_ADD_ENTRY"):
            assert more[f"{name}_count"] == 300
            assert more[f"{name}_sum"] > 0
        assert more["quire_bookie_adds_total"] == more["quire_bookie_add_seconds_count"] == 300
        assert more["bookie_journal_JOURNAL_SYNC_count"] == more["quire_storage_groups_total"] > 0
        assert more["bookie_WRITE_BYTES"] > 300 * 100
        assert more["bookie_ledgers_count"] == 1
        assert new["bookie_SERVER_STATUS"] == 1
        assert new["bookie_entries_count"] >= 300
        assert new["bookie_ledger_num_dirs"] == new["bookie_ledger_writable_dirs"] == 1
        assert 0 < next(value for name, value in new.items() if name.endswith("_usage")) < 100
        assert new["process_resident_memory_bytes"] > 10e6
        reads += more["bookkeeper_server_READ_ENTRY_REQUEST_count"]
        assert more["quire_bookie_reads_total"] >= more["quire_bookie_read_seconds_count"]
    assert reads > 0


def test_a_bookie_is_held_read_only_over_http(http: Http, cluster: LocalCluster) -> None:
    path = "/api/v1/bookie/state/readonly"
    assert http("PUT", path, {"readOnly": True}) == (200, {"readOnly": True})
    wait_for(lambda: cluster.bookies[0].id in http.get("/api/v1/bookie/list_bookies?type=ro"))
    assert http.metrics()["bookie_SERVER_STATUS"] == 0
    assert http("PUT", path, {"readOnly": "false"}) == (200, {"readOnly": False})
    wait_for(lambda: cluster.bookies[0].id in http.get("/api/v1/bookie/list_bookies"))
    assert http.get("/api/v1/bookie/state")["readOnly"] is False


def test_the_openapi_document_lists_every_route(http: Http) -> None:
    document = http.get("/api/v1/openapi.json")
    assert document["openapi"] == "3.1.0"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"]
            assert method in ("get", "put", "post", "delete")
            if method != "get" or "{" in path:
                continue
            needed = [one for one in operation.get("parameters", ()) if one["required"]]
            status, _ = http("GET", path)
            assert status in ((400,) if needed else (200, 404)), path


def test_a_bookie_is_decommissioned_by_an_http_job(http: Http, cluster: LocalCluster) -> None:
    prefix = "/api/v1/quire/jobs"
    leaving = cluster.bookies[3].id
    with (
        connect(cluster.uri) as client,
        client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4) as writer,
    ):
        writer.append(b"on all four")
    status, answer = http("PUT", "/api/v1/autorecovery/bookie", {"bookie_src": [leaving]})
    assert status == 202
    failed = wait_for(lambda: ended(http.get(f"{prefix}/{answer['id']}")))
    assert failed["state"] == "failed"  # it is alive
    assert failed["error"]["remedy"]
    log = cluster.bookies[0].log_path
    event = wait_for(lambda: ended_job(log.read_text(), answer["id"]))
    assert (event["kind"], event["target"], event["state"]) == ("recover", leaving, "failed")
    assert event["error"] == failed["error"]["what"]
    earlier = [answer["id"]]
    status, answer = http("PUT", "/api/v1/autorecovery/decommission", {"bookie_src": leaving})
    earlier.insert(0, answer["id"])
    refused = wait_for(lambda: ended(http.get(f"{prefix}/{answer['id']}")))
    assert (refused["state"], refused["error"]["kind"]) == ("failed", "JobRefusedError")
    assert "Nothing was changed" in refused["error"]["what"]
    assert leaving in http.get("/api/v1/bookie/list_bookies?type=rw")
    named = {"kind": "decommission", "target": leaving}
    assert http("PUT", "/api/v1/quire/pause", named) == (200, {"paused": True, "changed": True})
    assert http("PUT", "/api/v1/quire/pause", named)[1]["changed"] is False
    anyway = {"bookie_src": leaving, "check": False}
    status, job = http("PUT", "/api/v1/autorecovery/decommission", anyway)
    assert (status, job["kind"], job["target"]) == (202, "decommission", leaving)
    paused = wait_for(lambda: waits(http.get(f"{prefix}/{job['id']}")))
    assert (paused["state"], paused["step"], paused["ledgers_done"]) == (
        "running",
        "replicating",
        0,
    )
    assert [one["target"] for one in http.get("/api/v1/quire/paused")["paused"]] == [leaving]
    # Another process, such as the bookie's dashboard or a command, knows of it and resumes it.
    other = Http(url_in(cluster.bookies[1].log_path))
    assert other.get("/api/v1/quire/work")["paused"][0]["kind"] == "decommission"
    assert wait_for(lambda: elsewhere(other))[::2] == (leaving, 0)
    assert http.get("/api/v1/quire/work")["elsewhere"] == []  # it is its own
    run = Quire(cluster.uri)
    assert f"running: decommission {leaving}, by http.".encode() in run("explain").ok()
    assert leaving.encode() in run("cluster", "pause").ok()
    run("cluster", "resume", "decommission", leaving).ok()
    done = wait_for(lambda: ended(http.get(f"{prefix}/{job['id']}")))
    # The ledger needs four bookies, so it is left and reported.
    assert done["state"] == "incomplete"
    assert done["result"]["bookie"] == leaving
    left = done["remaining"]
    # Other tests may have left ledgers that need four bookies, too.
    assert (left["counts"], left["left"] >= 1) == ("ledgers", True), left
    assert left["reasons"][0].startswith("ledger"), left
    assert f"`quire bookie decommission {leaving} --cancel`" in left["remedy"]
    event = wait_for(lambda: ended_job(log.read_text(), job["id"]))
    assert (event["state"], event["left"]) == ("incomplete", left["left"])
    assert re.match(rf"{left['left']} ledgers? (is|are) left: ledger", event["error"]), event
    assert http.get("/api/v1/quire/running") == {"running": []}
    assert [one["id"] for one in http.get(prefix)["jobs"]] == [job["id"], *earlier]
    assert http("DELETE", f"{prefix}/{job['id']}")[1]["state"] == "incomplete"
    assert http("GET", f"{prefix}/99")[0] == 404


def elsewhere(http: Http) -> Any:
    """Return the only job of another process, once it reports a pause."""
    found = http.get("/api/v1/quire/work")["elsewhere"]
    told = [(one["target"], one["by"], one["ledgers_done"]) for one in found if one["paused"]]
    return told[0] if told else None


def ended_job(log: str, job_id: int) -> Any:
    """Return the event of the end of a job."""
    events = [json.loads(line) for line in log.splitlines() if '"http_job_ended"' in line]
    return next((one for one in events if one["id"] == job_id), None)


def waits(job: Any) -> Any:
    return job if job["paused"] is not None else None


def ended(job: Any) -> Any:
    return job if job["state"] != "running" else None


# -- the command line -------------------------------------------------------------------------


def test_an_http_server_runs_without_a_bookie(cluster: LocalCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    command = quire_command(
        "http", "--metadata", cluster.uri, "--http", "127.0.0.1:0", "--http-token-file", str(token)
    )
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            http = Http(process.stdout.readline().strip())
            assert http("GET", "/heartbeat")[0] == 200
            assert http("GET", "/api/v1/quire/cluster")[0] == 401
            known = {"Authorization": "Bearer 0123456789abcdef0123"}
            assert http("GET", "/api/v1/quire/cluster", headers=known)[1]["writable"] >= 3
            assert http("GET", "/api/v1/bookie/state", headers=known)[0] == 404
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_explain_shows_bookies_the_token_that_they_want(tmp_path: Path) -> None:
    """Only the server of the dashboard could be given it. So `explain` never saw the reports of
    bookies that want a token, and advised to start another server."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    arguments = ("--http", "127.0.0.1:0", "--http-token-file", str(token))
    with LocalCluster(1, directory=tmp_path / "cluster", bookie_args=arguments) as own:
        run = Quire(own.uri)
        assert b"quire explain the token of the bookies with" in run("explain").ok()
        for command in (("explain", "cluster"), ("explain",)):
            given = run(*command, "--http-bookies-token-file", str(token)).ok()
            assert b"refuses this process" not in given
            assert b"bookies: 1 writable" in given
        settings = tmp_path / "quire.toml"
        settings.write_text(f'[http]\nbookies_token_file = "{token}"\n')
        assert b"refuses this process" not in run("--config", str(settings), "explain").ok()
        token.chmod(0o644)
        run("explain", "--http-bookies-token-file", str(token)).fails(2, str(token))


def test_a_bookie_with_autorecovery_has_its_metrics_and_each_directory_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The names of both directories are one name to Apache."""
    directories = [tmp_path / "x-1", tmp_path / "x_1"]
    for one in directories:
        one.mkdir()
    command = quire_command(
        "bookie", "start", "--metadata", cluster.uri, "--port", str(free_port()),
        *(word for one in directories for word in ("--dir", str(one))),
        "--set", "min_free_bytes=0", "--set", "segment_bytes=1048576",
        "--autorecovery", "--http", "127.0.0.1:0",
    )  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            line = next(line for line in process.stderr if "http_serving" in line)
            http = Http(json.loads(line)["url"])
            process.stdout.readline()
            wait_for(lambda: "quire_autorecovery_ledgers_done_total" in http.metrics())
            text = http.get("/metrics")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    types = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(set(types)) == len(types)
    families = list(text_string_to_metric_families(text))
    assert len({(one.name, one.type) for one in families}) == len(families)
    samples = [(s.name, *sorted(s.labels.items())) for one in families for s in one.samples]
    assert len(set(samples)) == len(samples)
    [usage] = [one for one in families if one.name.startswith("bookie_ledger_dir_")]
    assert [s.labels for s in usage.samples] == [{"directory": str(one)} for one in directories]


def test_autorecovery_has_metrics(cluster: LocalCluster) -> None:
    command = quire_command(
        "autorecovery", "start", "--metadata", cluster.uri, "--http", "127.0.0.1:0"
    )
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "http_serving" in line)
            http = Http(json.loads(line)["url"])
            wait_for(lambda: http.metrics()["quire_autorecovery_elections_won_total"] == 1)
            assert http.get("/api/v1/autorecovery/who_is_auditor")["Auditor"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
