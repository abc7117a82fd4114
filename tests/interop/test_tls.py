"""TLS between Apache's clients and bookies and ours: mutual, with host names and with roles.

Both sides use the same PEM files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

import quire
from quire.config import TlsClientConfig
from quire.testing.cluster import BookieProcess
from tests.support.interop import operations
from tests.support.interop.apache_cluster import ApacheBookie, Bookie, Cluster
from tests.support.interop.apache_java import FEATURES, ApacheClient, java
from tests.support.interop.checks import Pair, Stream, check_closed, refused
from tests.support.interop.operations import Operation, possible
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import PLAIN, Client, ClientError, Code, Shape, payloads
from tests.support.network.certificates import LOOPBACK, Authority, Files
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.long]

ALL_FOUR = Shape(4, 4, 4)
"""An ensemble of all four bookies, all of which must acknowledge.

No bookie can be replaced. A late bookie may hear of a recovery before the last entries, and refuse
these. Apache's writer would then replace it before its next add, and fail.
"""
SINGLE = Shape(1, 1, 1)
PROVIDERS = ("JDK", "OpenSSL")


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings of a client."""

    ca: str
    shown: Files | None = None
    verify_host_name: bool = True
    provider: str = "JDK"
    """The TLS provider of Apache's client, like the next field."""
    versions: str = "TLSv1.3,TLSv1.2"

    def of_apache(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsProvider": self.provider,
            "tlsEnabledProtocols": self.versions,
            "clientTrustStoreType": "PEM",
            "clientTrustStore": self.ca,
            "tlsHostnameVerificationEnabled": self.verify_host_name,
        }
        if self.shown is not None:
            settings |= {
                "tlsClientAuthentication": True,
                "clientKeyStoreType": "PEM",
                "clientKeyStore": self.shown.private_key,
                "tlsCertificatePath": self.shown.certificate,
            }
        return settings

    def of_quire(self) -> TlsClientConfig:
        return TlsClientConfig(
            self.ca,
            self.shown.certificate if self.shown else None,
            self.shown.private_key if self.shown else None,
            verify_host_name=self.verify_host_name,
        )


@dataclass(frozen=True, slots=True)
class Secured:
    """A cluster, and what its clients need."""

    cluster: Cluster
    authority: Authority
    app: Tls
    """A client that is served."""

    def client(self, name: str, tls: Tls | None, *, explicit_lac: bool = False) -> Client:
        """Return a client by its kind and protocol, without TLS if `tls` is None."""
        uri = self.cluster.uri
        if name == "quire":
            # The client must not wait for bookies that may accept it later.
            config = quire.ClientConfig(
                tls=tls.of_quire() if tls is not None else None, bookies_wait_s=0.1
            )
            return QuireClient(uri, explicit_lac=explicit_lac, config=config)
        settings = tls.of_apache() if tls is not None else {}
        protocol = name.removeprefix("apache-")
        return ApacheClient(uri, protocol, explicit_lac=explicit_lac, settings=settings)

    @property
    def ours(self) -> bool:
        """Whether its bookies are ours, all of them."""
        return all(isinstance(bookie, BookieProcess) for bookie in self.cluster.bookies)

    def count(self, event: str) -> int:
        """Return how often our bookies have logged the event."""
        found = []
        for bookie in self.cluster.bookies:
            if isinstance(bookie, BookieProcess):
                lines = bookie.log_path.read_text().splitlines()
                found += [json.loads(line)["event"] for line in lines if line.startswith("{")]
        return found.count(event)

    def wait_logged(self, event: str, before: int) -> None:
        """Wait until the event was logged again."""
        wait_for(lambda: self.count(event) > before, f"{event} is logged")


def of_apache_bookie(own: Files, provider: str) -> dict[str, object]:
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsProvider": provider,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": own.private_key,
        "tlsCertificatePath": own.certificate,
    }


def add_apache(cluster: Cluster, authority: Authority, own: Files, count: int) -> None:
    """Mutual TLS, and the role. With the JDK's TLS and with OpenSSL's, in turns."""
    for number in range(count):
        cluster.add_apache(
            **of_apache_bookie(own, PROVIDERS[number % 2]),
            tlsTrustStoreType="PEM",
            tlsTrustStore=authority.ca,
            tlsClientAuthentication="true",
            bookieAuthProviderFactoryClass="org.apache.bookkeeper.tls.BookieAuthZFactory",
            authorizedRoles="app",
        )


def add_quire(cluster: Cluster, authority: Authority, own: Files, count: int) -> None:
    """Add our bookies with the same TLS settings."""
    cluster.add_quire(count, [
        "--tls-cert", own.certificate, "--tls-key", own.private_key, "--tls-ca", authority.ca,
        "--tls-client-certs", "required", "--tls-only", "--tls-authorized-role", "app",
    ])  # fmt: skip


def add_misnamed(cluster: Cluster, authority: Authority, make: str) -> None:
    """One bookie with a certificate for another host. It wants none from its clients; ours refuses
    clear text."""
    own = authority.issue("misnamed", "elsewhere.example")
    if make == "apache":
        cluster.add_apache(**of_apache_bookie(own, "JDK"))
    else:
        cluster.add_quire(
            1, ["--tls-cert", own.certificate, "--tls-key", own.private_key, "--tls-only"]
        )


MakeSecured = Callable[[str], Secured]


@pytest.fixture(scope="module")
def make_secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSecured]:
    """Yield secured clusters by the kind of their bookies, one at a time."""
    running: dict[str, Secured] = {}

    def end() -> None:
        for secured in running.values():
            secured.cluster.close()
        running.clear()

    def make(kind: str) -> Secured:
        if kind not in running:
            end()
            directory = tmp_path_factory.mktemp(kind)
            authority = Authority(directory)
            app = Tls(authority.ca, authority.issue("app", unit="0:app"))
            cluster = Cluster(directory).__enter__()
            running[kind] = Secured(cluster, authority, app)
            own = authority.issue("bookie")
            match kind:
                case "mixed":
                    add_apache(cluster, authority, own, 2)
                    add_quire(cluster, authority, own, 2)
                case "apache":
                    add_apache(cluster, authority, own, 4)
                case "quire":
                    add_quire(cluster, authority, own, 4)
                case "misnamed-apache" | "misnamed-quire":
                    add_misnamed(cluster, authority, kind.removeprefix("misnamed-"))
            cluster.wait_ready()
        return running[kind]

    yield make
    end()


@pytest.fixture
def secured(request: pytest.FixtureRequest, make_secured: MakeSecured) -> Secured:
    return make_secured(request.param)


def on(*kinds: str) -> pytest.MarkDecorator:
    """The kinds of clusters that a test is for; the last decorator, so that they change least."""
    return pytest.mark.parametrize("secured", kinds, indirect=True)


slow = pytest.mark.slow
CLIENTS = {
    "apache-v3": FEATURES["v3"],
    "apache-v2": FEATURES["v2"],
    "quire": QuireClient.features,
}
OTHER = {"apache-v2": "quire", "apache-v3": "quire", "quire": "apache-v3"}
MOST_CLIENTS = ["apache-v3", "quire", pytest.param("apache-v2", marks=slow)]


# -- both kinds of bookies in one ensemble ----------------------------------------------------


@pytest.mark.parametrize("writing", MOST_CLIENTS)
@on("mixed")
def test_one_client_recovers_the_other_over_tls(secured: Secured, writing: str) -> None:
    sent = payloads(300)
    client = secured.client(writing, secured.app)
    other = secured.client(OTHER[writing], secured.app)
    writer = client.create(ALL_FOUR)
    writer.append_all(sent)
    reader = other.open(writer.ledger_id, recover=True)
    assert reader.read(0, len(sent) - 1) == sent
    reader.close()
    refused(partial(writer.append, b"too late"), Code.LEDGER_FENCED, Code.LEDGER_CLOSED)
    check_closed([client, other], writer.ledger_id, sent, ALL_FOUR)
    client.close()
    other.close()


@pytest.mark.parametrize("name", MOST_CLIENTS)
@on("mixed")
def test_clear_text_connections_are_refused(secured: Secured, name: str) -> None:
    before = secured.count("clear_text_refused")
    client = secured.client(name, None)
    refused(partial(client.create(ALL_FOUR).append, b"nobody takes it"), Code.UNAUTHORIZED)
    secured.wait_logged("clear_text_refused", before)
    client.close()


@slow
@pytest.mark.parametrize("victim", [ApacheBookie, BookieProcess])
@pytest.mark.parametrize("writing", ["apache-v3", "quire"])
@on("mixed")
def test_a_killed_bookie_is_replaced_over_tls(
    secured: Secured, writing: str, victim: type[Bookie]
) -> None:
    """The writer replaces it, over TLS as before; then the other client recovers."""
    client = secured.client(writing, secured.app)
    other = secured.client(OTHER[writing], secured.app)
    stream = Stream(client.create(PLAIN))
    ledger_id = stream.writer.ledger_id
    stream.reaches(200)
    ensemble = client.describe(ledger_id).last_ensemble
    bookies = secured.cluster.bookies
    killed = next(one for one in bookies if one.id in ensemble and isinstance(one, victim))
    killed.kill()
    try:
        stream.goes_on()
        acknowledged = stream.stop()
        other.open(ledger_id, recover=True).close()
        described = check_closed(
            [client, other], ledger_id, Stream.sent(acknowledged), PLAIN, closed_by=other
        )
        assert killed.id not in described.last_ensemble
    finally:
        secured.cluster.wait_gone(killed)
        killed.start()
        secured.cluster.wait_registered(killed)
    client.close()
    other.close()


# -- everything that a client does, over TLS --------------------------------------------------

OPERATIONS = (
    operations.write_and_read, operations.entries_of_many_sizes, operations.empty_ledger,
    operations.read_while_open, operations.tail, operations.explicit_lac, operations.fence,
    operations.fence_under_load, operations.recover, operations.delete, operations.adv_writer,
    operations.deferred_sync,
)  # fmt: skip


EVERYTHING = [
    pytest.param(
        "apache" if name == "quire" else "quire", name, operation, id=f"{name}-{operation.__name__}"
    )
    for name, features in reversed(CLIENTS.items())
    for operation in possible(features, OPERATIONS)
]


@contextmanager
def over_tls(secured: Secured, name: str, tls: Tls) -> Iterator[Pair]:
    one, other = secured.client(name, tls), secured.client(OTHER[name], secured.app)
    try:
        yield Pair(one, other, lambda: secured.client(name, tls, explicit_lac=True))
    finally:
        one.close()
        other.close()


@slow
@pytest.mark.parametrize(("secured", "name", "operation"), EVERYTHING, indirect=["secured"])
def test_every_operation_works_over_tls(secured: Secured, name: str, operation: Operation) -> None:
    with over_tls(secured, name, secured.app) as pair:
        operation(pair)


@slow
@pytest.mark.parametrize(
    ("secured", "name"),
    [("quire", "apache-v3"), ("quire", "apache-v2"), ("apache", "quire")],
    indirect=["secured"],
)
def test_the_largest_entry_is_written_and_read_over_tls(secured: Secured, name: str) -> None:
    # The JDK's TLS needs the optimising compiler, which is off here. Without it, some 20 MiB take
    # longer than an add may take.
    with over_tls(secured, name, replace(secured.app, provider="OpenSSL")) as pair:
        operations.largest_entry(pair)


@slow
@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("protocol", ["v2", "v3"])
@on("quire")
def test_each_tls_provider_and_version_connects(
    secured: Secured, protocol: str, provider: str, versions: str
) -> None:
    # Without it, Apache's client would use the JDK's TLS, and mention that only in its log.
    assert provider == "JDK" or java("io.netty.handler.ssl.OpenSsl").isAvailable()
    tls = replace(secured.app, provider=provider, versions=versions)
    with over_tls(secured, f"apache-{protocol}", tls) as pair:
        operations.write_and_read(pair)
        operations.recover(pair)
        operations.entries_of_many_sizes(pair)


# -- who is not served ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stranger:
    comes: Callable[[Secured, Authority], Tls | None]
    """Returns the TLS settings of the client, given another authority."""
    event: str
    """The event that our bookie logs."""
    said: str
    """The error of our client."""
    code: int = Code.NOT_ENOUGH_BOOKIES
    """The code of an add by Apache's client."""


def showing(unit: str | None) -> Callable[[Secured, Authority], Tls]:
    def comes(secured: Secured, _: Authority) -> Tls:
        return replace(secured.app, shown=secured.authority.issue("stranger", unit=unit))

    return comes


CLOSED = "closed the connection right after the TLS handshake"
NOT_ACCEPTED = "does not accept this client after the TLS handshake"
STRANGERS = {
    "in clear text": Stranger(
        lambda secured, other: None,
        "clear_text_refused",
        "the bookie requires TLS or another certificate",
        Code.UNAUTHORIZED,
    ),
    "without a certificate": Stranger(
        lambda secured, other: replace(secured.app, shown=None), "tls_handshake_failed", CLOSED
    ),
    "of another authority": Stranger(
        lambda secured, other: replace(secured.app, shown=other.issue("app", unit="0:app")),
        "tls_handshake_failed",
        CLOSED,
    ),
    "expired": Stranger(
        lambda secured, other: replace(
            secured.app, shown=secured.authority.issue("expired", unit="0:app", expired=True)
        ),
        "tls_handshake_failed",
        CLOSED,
    ),
    "trusting another authority": Stranger(
        lambda secured, other: replace(secured.app, ca=other.ca),
        "tls_handshake_failed",
        "is not signed by a trusted authority",
    ),
    "without a role": Stranger(showing(None), "role_refused", NOT_ACCEPTED, Code.UNAUTHORIZED),
    "with another role first": Stranger(
        showing("0:other,app"), "role_refused", NOT_ACCEPTED, Code.UNAUTHORIZED
    ),
    "with another code": Stranger(
        showing("1:app"), "role_refused", NOT_ACCEPTED, Code.UNAUTHORIZED
    ),
}


@slow
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("kind", STRANGERS)
@on("quire", "apache")
def test_a_client_without_a_trusted_certificate_is_refused(
    secured: Secured, tmp_path: Path, name: str, kind: str
) -> None:
    """A stranger stores nothing, reads nothing, and fences nothing."""
    stranger = STRANGERS[kind]
    honest = [secured.client(make, secured.app) for make in ("apache-v3", "quire")]
    kept, writer = honest[0].create(ALL_FOUR), honest[0].create(ALL_FOUR)
    kept.append(b"kept")
    kept.close()
    writer.append(b"one")

    before = secured.count(stranger.event)
    client = secured.client(name, stranger.comes(secured, Authority(tmp_path, "other")))
    writes = client.create(ALL_FOUR)
    with pytest.raises(ClientError) as unwritten:
        writes.append(b"nobody takes it")
    with pytest.raises(ClientError) as unread:
        client.open(kept.ledger_id).read(0, 0)
    with pytest.raises(ClientError) as unrecovered:
        client.open(writer.ledger_id, recover=True)
    if name == "quire":
        for failed in (unwritten, unread, unrecovered):
            assert stranger.said in str(failed.value)
    else:
        assert unwritten.value.code == stranger.code
        if stranger.code == Code.UNAUTHORIZED:
            assert unread.value.code == unrecovered.value.code == Code.UNAUTHORIZED
    if secured.ours:
        secured.wait_logged(stranger.event, before)

    writer.append(b"two")
    for ledger_id, sent in ((writer.ledger_id, [b"one", b"two"]), (writes.ledger_id, [])):
        honest[1].open(ledger_id, recover=True).close()
        check_closed(honest, ledger_id, sent, ALL_FOUR)
    for each_client in (*honest, client):
        each_client.close()


@slow
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("unit", ["0:app,other", "0:app;1:east", "1:east;0:app"])
@on("quire", "apache")
def test_the_first_role_of_a_certificate_is_used(secured: Secured, name: str, unit: str) -> None:
    tls = replace(secured.app, shown=secured.authority.issue("roles", unit=unit))
    client = secured.client(name, tls)
    writer = client.create(ALL_FOUR)
    assert writer.append(b"served") == 0
    writer.close()
    check_closed([client], writer.ledger_id, [b"served"], ALL_FOUR)
    client.close()


# -- certificates of bookies only, for another host -------------------------------------------

JAVA_ALWAYS_VERIFIES = os.environ.get("APACHE_VERSION", "4.18.0") != "4.17.2"
"""Whether Java's client verifies names even if `hostnameVerificationEnabled` is false.

The library below 4.18, Netty 4.2, verifies them unless it is told otherwise, and the null with
which 4.18 tells it so has no effect on the JDK's TLS.
"""


@slow
@pytest.mark.parametrize("name", CLIENTS)
@on("misnamed-quire", "misnamed-apache")
def test_the_host_name_in_a_bookies_certificate_is_verified(secured: Secured, name: str) -> None:
    """Nothing is sent to a bookie with another name, unless names are not verified."""
    verifying = secured.client(name, Tls(secured.authority.ca))
    refusing = verifying.create(SINGLE)
    with pytest.raises(ClientError) as failed:
        refusing.append(b"not sent")
    if name == "quire":
        assert f"is not for {LOOPBACK}" in str(failed.value)
    else:
        assert failed.value.code == Code.NOT_ENOUGH_BOOKIES
    if name != "quire" and JAVA_ALWAYS_VERIFIES:
        name = "quire"
    client = secured.client(name, Tls(secured.authority.ca, verify_host_name=False))
    client.open(refusing.ledger_id, recover=True).close()
    check_closed([client], refusing.ledger_id, [], SINGLE)
    writer = client.create(SINGLE)
    assert writer.append(b"served") == 0
    writer.close()
    check_closed([client], writer.ledger_id, [b"served"], SINGLE)
    verifying.close()
    client.close()


@slow
@pytest.mark.parametrize("name", CLIENTS)
@on("misnamed-quire")
def test_clear_text_is_refused_even_without_client_certificates(
    secured: Secured, name: str
) -> None:
    before = secured.count("clear_text_refused")
    client = secured.client(name, None)
    writer = client.create(SINGLE)
    refused(partial(writer.append, b"nobody takes it"), Code.UNAUTHORIZED)
    secured.wait_logged("clear_text_refused", before)
    honest = secured.client(name, Tls(secured.authority.ca, verify_host_name=False))
    honest.open(writer.ledger_id, recover=True).close()
    check_closed([honest], writer.ledger_id, [], SINGLE)
    client.close()
    honest.close()
