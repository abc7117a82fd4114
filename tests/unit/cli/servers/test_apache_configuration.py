"""Apache's `bk_server.conf`: every key of 4.18 has a result, and units are converted.

Keys that must not be ignored silently are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.cli.apache.conf import as_layer, parse_properties, translate
from quire.cli.apache.keys import GROUPS, PREFIXES, RULES, rule_of
from quire.cli.apache.rules import Asked, HostFacts, KeyOutcome
from quire.cli.common.configuration import checked
from quire.cli.main import cli
from quire.configuration.fields import keys
from quire.configuration.layers import Configuration, merged, options_layer, toml_layer

KEYS = Path(__file__).with_name("bk_server_keys.txt").read_text().split()
"""The keys of conf/bk_server.conf, ServerConfiguration and AbstractConfiguration of 4.18.0."""
HOST = "advertisedAddress=b1\nlisteningInterface=eth0\n"
"""With these two keys, nothing else is reported."""

HOST_FACTS = HostFacts(lambda by_name, short: "10.0.0.7", lambda: "me", lambda path: 1000)


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CONFIG", "")
    monkeypatch.delenv("QUIRE_METADATA", raising=False)


def outcomes(text: str, machine: HostFacts = HOST_FACTS) -> dict[str, KeyOutcome]:
    return {one.name: one.outcome for one in translate(parse_properties(text), machine)}


def configuration(text: str, machine: HostFacts = HOST_FACTS, *above: Any) -> Configuration:
    return merged([as_layer(translate(parse_properties(text), machine), "bk.conf"), *above])


def quire(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_every_bookkeeper_configuration_key_has_a_rule() -> None:
    assert len(KEYS) > 250
    assert [name for name in KEYS if rule_of(name) is None] == []


def test_every_rule_is_for_an_existing_bookkeeper_key() -> None:
    of_the_client = {
        "bookieMaxMultipleForWeightBasedPlacement", "diskWeightBasedPlacementEnabled",
        "enableDigestTypeAutodetection", "getBookieInfoIntervalSeconds",
        "networkTopologyTableFileName",
    }  # fmt: skip
    assert set(RULES) - set(KEYS) - of_the_client == set()
    for prefix in PREFIXES:
        assert any(name.startswith(prefix) for name in KEYS), prefix
    assert [name for names in GROUPS.values() for name in names] == list(RULES)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("bookiePort=4000", "bookie.port", 4000),
        ("bookieId=rack2-a", "bookie.bookie_id", "rack2-a"),
        ("ledgerDirectories=/d/1, /d/2", "bookie.directories", ("/d/1", "/d/2")),
        ("metadataServiceUri=zk+hierarchical://z:2181/l", "metadata", "zk+hierarchical://z:2181/l"),
        ("zkServers=a:1,b:2", "metadata", "zk://a:1;b:2/ledgers"),
        ("zkServers=a:1\nzkLedgersRootPath=/x\nledgerManagerFactoryClass=org.apache.bookkeeper.meta."
         "LongHierarchicalLedgerManagerFactory", "metadata", "zk+longhierarchical://a:1/x"),
        ("zkTimeout=30000", "bookie.session_timeout_s", 30.0),
        ("nettyMaxFrameSizeBytes=1048576", "bookie.max_frame_bytes", 1 << 20),
        ("gcWaitTime=900000", "bookie.gc_interval_s", 900.0),
        ("gcOverreplicatedLedgerWaitTime=-1", "bookie.gc_over_replicated_interval_s", 0.0),
        ("minorCompactionThreshold=0.3", "bookie.compact_minor_ratio", 0.3),
        ("majorCompactionInterval=7200", "bookie.compact_major_interval_s", 7200.0),
        ("majorCompactionInterval=0", "bookie.compact_major_ratio", 0.0),
        ("majorCompactionInterval=0\nmajorCompactionThreshold=0.5",
         "bookie.compact_major_ratio", 0.0),
        ("isThrottleByBytes=true\ncompactionRateByBytes=5000000",
         "bookie.compact_bytes_per_s", 5_000_000),
        ("compactionRateByBytes=5000000", "bookie.compact_bytes_per_s", 16 << 20),
        ("diskCheckInterval=10000", "bookie.check_space_s", 10.0),
        ("localScrubInterval=3600", "bookie.scrub_interval_s", 3600.0),
        ("autoRecoveryDaemonEnabled=true", "bookie.autorecovery", True),
        ("lostBookieRecoveryDelay=60", "autorecovery.lost_bookie_delay_s", 60),
        ("openLedgerRereplicationGracePeriod=30000", "autorecovery.open_grace_s", 30.0),
        ("replicationRateByBytes=-1", "autorecovery.bytes_per_s", None),
        ("ensemblePlacementPolicy=org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy",
         "client.placement.policy", "region-aware"),
        ("networkTopologyScriptFileName=/t.sh", "client.placement.locations", "script:/t.sh"),
        ("minNumRacksPerWriteQuorum=3", "client.placement.min_racks", 3),
        ("httpServerEnabled=true\nhttpServerHost=127.0.0.1\nhttpServerPort=8000",
         "bookie.http", "127.0.0.1:8000"),
        ("httpServerEnabled=true", "bookie.http", ""),
        ("serverTcpKeepIdle=60\nserverTcpKeepIntvl=10\nserverTcpKeepCnt=3",
         "bookie.dead_client_s", 90.0),
        ("serverTcpKeepIdle=60", "bookie.dead_client_s", 735.0),
        ("serverTcpKeepIdle=60\nserverSockKeepalive=false", "bookie.dead_client_s", 30.0),
        ("serverTcpKeepIdle=-1", "bookie.dead_client_s", 30.0),
    ],
)  # fmt: skip
def test_supported_keys_are_translated(text: str, key: str, value: object) -> None:
    found = configuration(HOST + text)
    assert found.problems == []
    assert found.values[key] == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("journalSyncData=false", "acknowledge entries that are on no disk"),
        ("journalWriteData=false", "acknowledge entries that are on no disk"),
        ("skipReplayJournalInvalidRecord=true", "does not skip damaged records"),
        ("disableServerSocketBind=true", "serve nobody"),
        ("forceReadOnlyBookie=true", "quire bookie decommission"),
        ("zkEnableSecurity=true", "QUIRE_ZOOKEEPER_AUTH_FILE"),
        ("permittedStartupUsers=bookie", "runs as me"),
        ("ensemblePlacementPolicy=com.example.Mine", "choose one of"),
        ("bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
         "serve everybody"),
        ("bookieAuthProviderFactoryClass=org.apache.bookkeeper.tls.BookieAuthZFactory",
         "needs TLS and roles"),
        ("tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory", "Java key stores"),
        ("tlsProviderFactoryClass=a.TLSContextFactory\ntlsKeyStoreType=PEM", "tlsCertificatePath"),
        ("readOnlyModeEnabled=perhaps", "'perhaps' is neither true nor false"),
        ("ledgerMetadataVersion=4", "4 is not a format in which Quire can store new ledgers"),
        ("gcWaitTime=soon", "'soon' is not a number"),
        ("gcWaitTime=nan", "'nan' is not a number"),
        ("majorCompactionInterval=nan", "'nan' is not a number"),
        ("compactionRateByBytes=1e400\nisThrottleByBytes=true", "'1e400' is not a number"),
        ("serverTcpKeepIdle=inf", "'inf' is not a number"),
        ("gcWaitTime=0", "0.0 is not 0.001 or more"),
        ("bookiePort=99999", "bookie.port: '99999' is not 0 to 65535"),
    ],
)  # fmt: skip
def test_unsupported_keys_that_matter_are_problems(text: str, problem: str) -> None:
    [found] = configuration(HOST + text).problems
    assert problem in found
    assert found.startswith("bk.conf:3")
    assert text.partition("=")[0] in found


def test_keys_without_an_effect_are_ignored_with_a_reason() -> None:
    found = outcomes(
        HOST + "journalSyncData=true\njournalDirectories=/j\nreadOnlyModeEnabled=false\n"
        "isForceGCAllowWhenNoSpace=true\npermittedStartupUsers=you, me\ndbStorage_xyz=1\n"
        "jounalSyncData=false\nindexDirectories=\nhttpServerEnabled=true\n"
    )
    assert {name: one.verdict for name, one in found.items()} == {
        "advertisedAddress": "taken",
        "listeningInterface": "ignored",
        "journalSyncData": "implied",
        "journalDirectories": "ignored",
        "readOnlyModeEnabled": "ignored",
        "isForceGCAllowWhenNoSpace": "implied",
        "permittedStartupUsers": "implied",
        "dbStorage_xyz": "ignored",
        "jounalSyncData": "ignored",
        "indexDirectories": "ignored",
        "httpServerEnabled": "ignored",
    }
    assert found["jounalSyncData"].why.endswith("did you mean journalSyncData?")
    assert "0.0.0.0:8080" in found["httpServerEnabled"].why


def test_tls_keys_are_translated_if_tls_is_enabled() -> None:
    files = "tlsKeyStoreType=PEM\ntlsKeyStore=/k\ntlsCertificatePath=/c\ntlsTrustStore=/ca\n"
    assert configuration(HOST + files).bookie().tls is None
    switch = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
    roles = (
        "bookieAuthProviderFactoryClass=org.apache.bookkeeper.tls.BookieAuthZFactory\n"
        "authorizedRoles=a,b\n"
    )
    found = configuration(HOST + files + switch + "tlsClientAuthentication=true\n" + roles)
    assert found.problems == []
    config = found.bookie()
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.private_key, config.tls.ca) == ("/c", "/k", "/ca")
    assert config.tls.client_certificates == "required"
    assert (config.tls_required, config.authorized_roles) == (True, ("a", "b"))


@pytest.mark.parametrize(
    "provider", ["", "bookieAuthProviderFactoryClass=a.AuthenticationDisabledAuthProviderFactory\n"]
)
def test_roles_are_ignored_unless_the_provider_checks_them(provider: str) -> None:
    """A bookie with roles and without TLS does not start."""
    text = HOST + provider + "authorizedRoles=app\n"
    assert outcomes(text)["authorizedRoles"].verdict == "ignored"
    assert configuration(text).bookie().authorized_roles == ()


def test_the_free_space_limit_follows_the_smallest_disk() -> None:
    sizes = {"/d/1": 4000, "/d/2": 2000}
    machine = HostFacts(HOST_FACTS.own_host, HOST_FACTS.own_user, sizes.get)
    text = HOST + "diskUsageThreshold=0.9\nledgerDirectories=/d/1,/d/2,/d/none\n"
    assert configuration(text, machine).bookie().min_free_bytes == 199  # of 2,000, in floats
    marks = configuration(text + "diskUsageLwmThreshold=0.85\n", machine)
    assert marks.problems == []
    assert (marks.bookie().min_free_bytes, marks.bookie().writable_free_bytes) == (199, 300)
    above = outcomes(text + "diskUsageLwmThreshold=0.95\n", machine)
    assert above["diskUsageLwmThreshold"].verdict == "ignored"
    nowhere = HostFacts(HOST_FACTS.own_host, HOST_FACTS.own_user, lambda path: None)
    assert outcomes(text, nowhere)["diskUsageThreshold"].verdict == "ignored"
    [problem] = configuration(HOST + "diskUsageThreshold=95").problems
    assert "95 is not a share of the disk" in problem


def test_bookkeepers_defaults_are_translated() -> None:
    found = configuration("bookiePort=1")
    assert (found.values["bookie.bind"], found.values["bookie.advertise"]) == (
        "0.0.0.0",
        "10.0.0.7",
    )
    local = HostFacts(
        lambda by_name, short: "127.0.1.1", HOST_FACTS.own_user, HOST_FACTS.disk_bytes
    )
    [problem] = configuration("bookiePort=1", local).problems
    assert "127.0.1.1: name the host" in problem
    assert configuration("allowLoopback=true", local).values["bookie.advertise"] == "127.0.1.1"
    own = options_layer({"bookie.advertise": ("b7", "--advertise")})
    assert checked(configuration("bookiePort=1", local, own)).values["bookie.advertise"] == "b7"
    [problem] = configuration("listeningInterface=eth0", local).problems
    assert "the address of eth0" in problem
    asked: list[tuple[bool, bool]] = []
    named = HostFacts(
        lambda *how: (asked.append(how), "h")[1], HOST_FACTS.own_user, HOST_FACTS.disk_bytes
    )
    configuration("useHostNameAsBookieID=true\nuseShortHostName=true", named)
    assert asked == [(True, True)]


def test_quires_configuration_overrides_bookkeepers() -> None:
    own = toml_layer({"bookie": {"port": 5}}, "q.toml", {})
    found = configuration(HOST + "bookiePort=4\nzkTimeout=20000", HOST_FACTS, own)
    assert (found.values["bookie.port"], found.values["bookie.session_timeout_s"]) == (5, 20.0)
    assert found.origins["bookie.port"] == "q.toml"
    assert found.origins["bookie.session_timeout_s"] == "bk.conf:4 (zkTimeout)"


def test_properties_are_parsed_like_javas() -> None:
    found = parse_properties(
        "# comment\n! too\n\na=1\n b : 2\nc 3\nd = x=y : z\n"
        "e=one,\\\n   two\nf\na=2\ng=C:\\\\dir\nh=a\\,b"
    )
    assert {name: one.value for name, one in found.items()} == {
        "a": "2", "b": "2", "c": "3", "d": "x=y : z", "e": "one,two", "f": "", "g": "C:\\dir",
        "h": "a,b",
    }  # fmt: skip
    assert (found["a"].line, found["e"].line, found["g"].line) == (11, 8, 12)
    with pytest.raises(ValueError, match=r"line 2 sets b to .*Java would replace"):
        parse_properties("a=1\nb=${sys:home}/x")


def test_bookie_conf_prints_the_outcome_of_each_key(tmp_path: Path) -> None:
    path = tmp_path / "bk.conf"
    path.write_text("bookiePort=4000\nadvertisedAddress=b1\njournalDirectory=/j\n")
    lines = quire("bookie", "conf", str(path)).stdout.splitlines()
    assert lines[0] == "taken    bookiePort=4000 -> bookie.port = 4000"
    assert lines[2].startswith("ignored  journalDirectory=/j: Quire has no separate journal")
    assert lines[3].startswith("taken    (not in the file) -> bookie.bind = 0.0.0.0")
    toml = quire("bookie", "conf", str(path), "--toml").stdout
    assert "port = 4000" in toml
    [first, *_] = map(json.loads, quire("bookie", "conf", str(path), "--json").stdout.splitlines())
    assert (first["verdict"], first["keys"], first["line"]) == ("taken", {"bookie.port": "4000"}, 1)
    path.write_text("advertisedAddress=b1\njournalSyncData=false\n")
    refused = quire("bookie", "conf", str(path))
    assert refused.exit_code == 1
    assert "refused" in refused.stderr
    given = ("--bk-server-conf", str(path), "--metadata", "sqlite:///x.db")
    started = quire("bookie", "start", *given)
    assert started.exit_code == 2
    assert f"{path}:2: journalSyncData=false: the bookie would acknowledge" in started.stderr


def test_every_rule_leads_to_a_configuration_key() -> None:
    """The configuration knows every key to which a rule leads."""
    sample = {"true", "5", "org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy", "0.5"}
    on = {"tlsProviderFactoryClass": "x.TLSContextFactory", "isThrottleByBytes": "true"}
    hit = set()
    for name, rule in RULES.items():
        for value in sample:
            try:
                outcome = rule.apply(Asked(value, {**on, name: value}, HOST_FACTS))
            except ValueError:
                continue
            if outcome.verdict == "taken":
                assert set(outcome.keys) <= set(keys()), name
                hit.add(name)
    assert len(hit) > 40
