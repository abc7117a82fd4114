"""Clusters of real bookies that offer or require TLS, with the real client and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

import quire
from quire.config import TlsClientConfig
from quire.errors import LedgerFencedError
from quire.http.views.cluster_view import ClusterView
from quire.http.watch.observations import SPACE_INTERVAL_S, TLS_ANEW_INTERVAL_S, DiskSpaces
from quire.metadata import open_metadata
from quire.replication.explain.silence import SilenceKind, ask_anew
from quire.replication.marks.marks import ReplicationMarks
from quire.testing.cluster import LocalCluster
from tests.support.bookies.tls import GRANTED, READ, REQUEST, UNAUTHORIZED
from tests.support.network.certificates import LOOPBACK, Authority, Files
from tests.support.processes.cli import Quire
from tests.support.processes.protocol import Peer
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
TIMEOUT_S = 60.0
REPAIR_LIMIT_S = 150.0
"""Longer than one lost session: an auditor waits for 15 s after it."""
MIB = 1024 * 1024


@dataclass(frozen=True)
class Secured:
    """A cluster that serves only clients with a certificate for the role `app`."""

    cluster: LocalCluster
    authority: Authority
    own: Files
    app: Files

    @property
    def uri(self) -> str:
        return self.cluster.uri

    def client(self, shown: Files | None = None, **more: Any) -> TlsClientConfig:
        shown = shown or self.app
        return TlsClientConfig(self.authority.ca, shown.certificate, shown.private_key, **more)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    own, app = authority.issue("bookie"), authority.issue("app", unit="0:app")
    arguments = [
        "--tls-cert", own.certificate, "--tls-key", own.private_key, "--tls-ca", authority.ca,
        "--tls-only", "--tls-authorized-role", "app",
    ]  # fmt: skip
    with LocalCluster(bookies=3, directory=directory / "cluster", bookie_args=arguments) as cluster:
        yield Secured(cluster, authority, own, app)


def config(tls: TlsClientConfig | None, **more: Any) -> quire.ClientConfig:
    return quire.ClientConfig(tls=tls, **more)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    async def bounded(work: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await work

    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded(work))

    return on_loop


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_ledgers_are_written_read_and_recovered_over_tls(run: Run, secured: Secured) -> None:
    sent = [b"%d;" % k * (k % 300) for k in range(3_000)]

    async def scenario() -> None:
        async with (
            quire.connect(secured.uri, config=config(secured.client())) as client,
            quire.connect(secured.uri, config=config(secured.client())) as other,
        ):
            writer = await client.create_ledger()
            assert await writer.append_many(sent) == len(sent) - 1
            reader = await other.open_ledger(writer.ledger_id, recover=True)
            assert [entry.payload async for entry in reader.read()] == sent
            with pytest.raises(LedgerFencedError):
                await writer.append(b"too late")

    run(scenario())


def test_deferred_sync_works_over_tls(run: Run, secured: Secured) -> None:
    """Deferred sync and force need v3, which has its own connection with the same security."""

    async def scenario() -> None:
        async with quire.connect(secured.uri, config=config(secured.client())) as client:
            writer = await client.create_ledger(deferred_sync=True)
            for number in range(50):
                await writer.append(b"%d" % number)
            assert await writer.force() == 49
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            assert len([entry async for entry in reader.read()]) == 50

    run(scenario())


def test_large_entries_over_tls_survive_a_paused_bookie(run: Run, secured: Secured) -> None:
    """Write 60 MiB with at most two entries in flight while one bookie receives nothing for a
    while.
    """

    async def scenario() -> None:
        limits = config(secured.client(), max_unacked_bytes=8 * MIB, add_timeout_s=2.0)
        async with quire.connect(secured.uri, config=limits) as client:
            writer = await client.create_ledger()
            body = os.urandom(5 * MIB - 1024)
            await writer.append(body)
            stopped = secured.cluster.bookies[1]
            stopped.pause()
            try:
                for _ in range(10):
                    await writer.append(body)
            finally:
                stopped.resume()
            assert await writer.append(body) == 11
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            count = 0
            async for entry in reader.read():
                assert entry.payload == body
                count += 1
            assert count == 12

    run(scenario())


async def failure(uri: str, tls: TlsClientConfig | None) -> str:
    """Return the error of a writer that cannot reach any bookie."""
    async with quire.connect(uri, config=config(tls, add_timeout_s=2.0)) as client:
        writer = await client.create_ledger()
        with pytest.raises(quire.QuireError) as failed:
            await writer.append(b"nobody takes it")
        return str(failed.value)


async def test_clients_without_a_valid_certificate_are_refused(
    secured: Secured, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    other_role = secured.authority.issue("other", unit="0:other")
    for tls, message in [
        (TlsClientConfig(secured.authority.ca), "closed the connection right after"),
        (secured.client(stranger.issue("app", unit="0:app")), "closed the connection right after"),
        (secured.client(other_role), "does not accept this client"),
        (TlsClientConfig(stranger.ca), "is not signed by a trusted authority"),
        (None, "the bookie requires TLS or another certificate"),
    ]:
        said = await failure(secured.uri, tls)
        assert message in said
        assert "Start another bookie" not in said  # it would not accept this client either
    wanted = {"tls_handshake_failed", "role_refused", "clear_text_refused"}
    async with asyncio.timeout(TIMEOUT_S):  # the last answer may be here before its line
        while not wanted <= events_of(secured):
            await asyncio.sleep(0.01)


def events_of(secured: Secured) -> set[str]:
    lines = secured.cluster.bookies[0].log_path.read_text().splitlines(keepends=True)
    return {json.loads(one)["event"] for one in lines if one.startswith("{") and one.endswith("\n")}


async def test_clear_text_is_refused_and_tls_is_served(secured: Secured) -> None:
    with Peer(secured.cluster) as peer:
        peer.send(READ)
        assert peer.receive() == UNAUTHORIZED
    with Peer(secured.cluster) as peer:
        peer.send(REQUEST)
        assert peer.receive() == GRANTED


async def test_slow_and_malicious_peers_do_not_disturb_honest_clients(secured: Secured) -> None:
    """Fifty that never finish, some that send garbage, injected requests: honest clients work."""
    peers = [Peer(secured.cluster) for _ in range(50)]
    try:
        for number, peer in enumerate(peers):
            peer.send(REQUEST)
            assert peer.receive() == GRANTED
            if number % 2:
                peer.send(b"\x16\x03\x01\x02\x00\x01")
        with Peer(secured.cluster) as liar:
            liar.send(REQUEST + READ)
            assert liar.receive() == b""
        async with quire.connect(secured.uri, config=config(secured.client())) as client:
            writer = await client.create_ledger()
            await writer.append(b"served")
            await writer.close()
    finally:
        for peer in peers:
            peer.socket.close()


@pytest.mark.parametrize("kind", ["wrong name", "expired"])
async def test_a_client_refuses_an_invalid_certificate(tmp_path: Path, kind: str) -> None:
    authority = Authority(tmp_path)
    names = ("elsewhere.example",) if kind == "wrong name" else ()
    own = authority.issue("bookie", *names, expired=kind == "expired")
    arguments = ["--tls-cert", own.certificate, "--tls-key", own.private_key]
    with LocalCluster(bookies=1, directory=tmp_path / "c", bookie_args=arguments) as cluster:
        store = await open_metadata(cluster.uri)
        try:
            registered = await store.bookies()
        finally:
            await store.close()
        assert all(address.tls for address in registered.writable.values())
        shape = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        for verify in (True, False):
            tls = TlsClientConfig(authority.ca, verify_host_name=verify)
            async with quire.connect(cluster.uri, config=config(tls)) as client:
                writer = await client.create_ledger(**shape)
                if kind == "wrong name" and not verify:
                    assert await writer.append(b"served") == 0
                    continue
                message = f"is not for {LOOPBACK}" if kind == "wrong name" else "has expired"
                with pytest.raises(quire.QuireError, match=message) as failed:
                    await writer.append(b"not sent")
                # It said "Correct the client's certificate or password".
                remedy = "Correct the certificate" if kind == "wrong name" else "Renew the certif"
                assert failed.value.remedy.startswith(remedy)
        # The bookie does not require TLS, so clients without TLS are served as before.
        async with quire.connect(cluster.uri, config=config(None)) as client:
            writer = await client.create_ledger(**shape)
            assert await writer.append(b"in clear text") == 0


async def test_a_bookie_without_tls_is_refused_by_a_tls_client(
    quire_cluster: LocalCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    assert "does not offer TLS" in await failure(quire_cluster.uri, TlsClientConfig(authority.ca))


async def test_a_running_bookie_loads_a_replaced_certificate(tmp_path: Path) -> None:
    """The new key first does not match (nothing changes), then does.

    Existing connections continue, and new ones see the new certificate. A dashboard that has an old
    connection sees within seconds what new clients see.
    """
    now_s = 0.0
    spaces = DiskSpaces(lambda: now_s, TIMEOUT_S)
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    own = old.issue("bookie")
    arguments = ["--tls-cert", own.certificate, "--tls-key", own.private_key, "--tls-only"]
    shape = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}

    async def served(ca: str) -> bool:
        async with quire.connect(cluster.uri, config=config(TlsClientConfig(ca))) as client:
            writer = await client.create_ledger(**shape)
            (result,) = await asyncio.gather(writer.append(b"x"), return_exceptions=True)
            if result == 0:
                return True
            assert "is not signed by a trusted authority" in str(result)
            return False

    with LocalCluster(bookies=1, directory=tmp_path / "c", bookie_args=arguments) as cluster:
        log = cluster.bookies[0].log_path
        async with (
            asyncio.timeout(TIMEOUT_S),
            quire.connect(cluster.uri, config=config(TlsClientConfig(old.ca))) as client,
        ):
            writer = await client.create_ledger(**shape)
            await writer.append(b"before")
            (name,) = (await client.bookies()).writable
            assert (await spaces.of(client, [name]))[name] is not None
            now_s += SPACE_INTERVAL_S
            assert (await spaces.of(client, [name]))[name] is not None, "the client stays connected"
            (ends_ms,) = {*spaces.certificates_ms.values()}
            assert ends_ms > client.clock.now_ms()
            fresh = new.issue("fresh")
            shutil.copyfile(fresh.certificate, own.certificate)
            # It may also have found a partly copied file, and reported that first.
            while "does not belong to the certificate" not in log.read_text():
                assert await served(old.ca)
            assert "tls_reload_failed" in log.read_text()
            shutil.copyfile(fresh.private_key, own.private_key)
            while not await served(new.ca):
                pass
            assert not await served(old.ca)
            assert "tls_reloaded" in log.read_text()
            assert await writer.append(b"after") == 1
            now_s += TLS_ANEW_INTERVAL_S - SPACE_INTERVAL_S - 1
            assert (await spaces.of(client, [name]))[name] is not None, "over the old connection"
            now_s += 1
            assert (await spaces.of(client, [name]))[name] is None
            assert "is not signed by a trusted authority" in spaces.silent[name].why
            assert spaces.silent[name].kind is SilenceKind.TLS
        await spaces.close()


async def test_an_expired_certificate_is_the_same_finding_everywhere(tmp_path: Path) -> None:
    """A dashboard with open connections says at once what `quire explain` says.

    The finding has the date and the file. `quire explain ledger` names them too.
    """
    now_s = 0.0
    authority = Authority(tmp_path)
    own = authority.issue("bookie")
    arguments = ["--tls-cert", own.certificate, "--tls-key", own.private_key, "--tls-only"]
    with LocalCluster(bookies=1, directory=tmp_path / "c", bookie_args=arguments) as cluster:
        run = Quire(cluster.uri)
        run.environment["QUIRE_TLS_CA"] = authority.ca
        settings = config(TlsClientConfig(authority.ca))
        dashboard = ClusterView(lambda: now_s, no_metrics, TIMEOUT_S)
        async with (
            asyncio.timeout(TIMEOUT_S),
            quire.connect(cluster.uri, config=settings) as client,
        ):
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"x")
            await writer.close()
            assert not [one for one in await findings(dashboard, client) if "certificate" in one]
            authority.issue("bookie", expired=True)
            while "tls_reloaded" not in cluster.bookies[0].log_path.read_text():
                await ask_anew(client, cluster.bookies[0].id, TIMEOUT_S)
            now_s += TLS_ANEW_INTERVAL_S
            (said,) = [one for one in await findings(dashboard, client) if "certificate" in one]
            await dashboard.close()
        assert "expired at 2020-01-02T00:00:00Z)" in said
        assert f"openssl x509 -enddate -noout -in {own.certificate}" in said
        explained = json.loads(run("explain", "--json").ok())["problems"]
        assert said in [f"{one['what']}. {one['next']}" for one in explained]
        ledger = run("explain", "ledger", str(writer.ledger_id)).ok().decode()
        assert "expired at 2020-01-02T00:00:00Z" in ledger
        assert f"openssl x509 -enddate -noout -in {own.certificate}" in ledger


async def no_metrics(url: str) -> str:
    return ""


async def findings(view: ClusterView, client: quire.Client) -> list[str]:
    return [f"{one.what}. {one.next}" for one in (await view.look(client)).problems]


def test_commands_work_over_tls(secured: Secured, tmp_path: Path) -> None:
    run = Quire(secured.uri)
    options = [
        "--tls-ca", secured.authority.ca,
        "--tls-cert", secured.app.certificate, "--tls-key", secured.app.private_key,
    ]  # fmt: skip
    ledger = run("ledger", "write", *options, stdin=b"one\ntwo\n").ok().decode().strip()
    assert run("ledger", "read", *options, ledger).ok() == b"one\ntwo\n"
    run.environment |= {
        "QUIRE_TLS_CA": secured.authority.ca,
        "QUIRE_TLS_CERT": secured.app.certificate,
        "QUIRE_TLS_KEY": secured.app.private_key,
    }
    assert run("ledger", "read", ledger).ok() == b"one\ntwo\n"
    run("bench", "add", "--entries", "100", "--rounds", "1", "--warm-up", "0").ok()
    run("ledger", "read", ledger, "--tls-ca", "/none").fails(1, "/none cannot be read")
    run("ledger", "read", ledger, "--tls-key", secured.own.private_key).fails(
        1, "does not belong to the certificate"
    )
    del run.environment["QUIRE_TLS_CA"]
    run("ledger", "read", ledger).fails(2, "require --tls-ca")


async def test_autorecovery_in_a_bookies_process_uses_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client did not see QUIRE_TLS_CA, so nothing was repaired after --tls-only."""
    authority = Authority(tmp_path)
    own = authority.issue("bookie")
    monkeypatch.setenv("QUIRE_TLS_CA", authority.ca)
    arguments = [
        "--tls-cert", own.certificate, "--tls-key", own.private_key, "--tls-only",
        # After a lost session an auditor waits before it looks for lost bookies, and after a failed
        # repair a worker waits longer each time. A busy machine must cause neither.
        "--set", "session_timeout_s=5", "--autorecovery",
        "--set-autorecovery", "poll_s=0.2", "--set-autorecovery", "backoff_s=0.2",
        "--set-autorecovery", "backoff_max_s=2",
    ]  # fmt: skip
    with LocalCluster(3, tmp_path / "cluster", bookie_args=arguments) as cluster:
        tls = config(TlsClientConfig(authority.ca))
        async with quire.connect(cluster.uri, config=tls) as client:
            ledger = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
            await ledger.append(b"one")
            await ledger.close()
            lost = cluster.bookies[0]
            if lost.id not in await members(client, ledger.ledger_id):
                lost = cluster.bookies[1]
            lost.kill()
            # The auditor may not have seen the bookie in its short life: this asks for a search.
            await ReplicationMarks(client.metadata).set_delay(0)
            await until(
                partial(members, client, ledger.ledger_id),
                f"{lost.id} was replaced",
                right=lambda named: lost.id not in named,
                limit_s=REPAIR_LIMIT_S,
                poll_s=0.1,
            )
            reader = await client.open_ledger(ledger.ledger_id)
            assert [entry.payload async for entry in reader.read(0, 0)] == [b"one"]


async def members(client: quire.Client, ledger_id: int) -> set[str]:
    ledger = await client.ledger_metadata(ledger_id)
    return {bookie for segment in ledger.segments for bookie in segment.ensemble}


def test_a_bookie_that_cannot_use_its_files_does_not_start(
    secured: Secured, tmp_path: Path
) -> None:
    run = Quire(f"sqlite:///{tmp_path / 'metadata.db'}")
    start = ["bookie", "--dir", str(tmp_path / "bookie"), "--port", "0"]
    own = secured.own
    for options, status, named in [
        (["--tls-cert", "/none"], 1, "/none cannot be read"),
        (["--tls-cert", own.certificate], 1, "holds no private key"),
        (
            ["--tls-cert", own.certificate, "--tls-key", secured.app.private_key],
            1,
            "does not belong to the certificate",
        ),
        (["--tls-only"], 2, "--tls-only requires --tls-cert"),
        (["--tls-cert", own.certificate, "--tls-client-certs", "required"], 2, "requires --tls-ca"),
        (
            ["--tls-cert", own.certificate, "--tls-authorized-role", "a"],
            2,
            "give --tls-ca (the authorities that sign them) (see",
        ),
        (
            [
                "--tls-cert",
                own.certificate,
                "--tls-ca",
                own.certificate,
                "--tls-client-certs",
                "none",
                "--tls-authorized-role",
                "a",
            ],
            2,
            "give --tls-client-certs required (see",
        ),
    ]:
        run(*start, *options).fails(status, named)
    assert not (tmp_path / "metadata.db").exists()


async def test_an_old_tls_version_is_refused(secured: Secured) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(secured.authority.ca)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with Peer(secured.cluster) as peer:
        peer.send(REQUEST)
        assert peer.receive() == GRANTED
        with pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(peer.socket, server_hostname=LOOPBACK)
