"""The keys of Apache's `bk_server.conf` that need thought, each with a function that decides.

The table `bk_server.toml` names these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from quire._runtime.units import host_port

Verdict = Literal["taken", "implied", "ignored", "refused"]

POLICIES = {
    "DefaultEnsemblePlacementPolicy": "any",
    "RackawareEnsemblePlacementPolicy": "rack-aware",
    "RegionAwareEnsemblePlacementPolicy": "region-aware",
    "ZoneawareEnsemblePlacementPolicy": "zone-aware",
    "LocalBookieEnsemblePlacementPolicy": "local-first",
}
MANAGERS = {
    "HierarchicalLedgerManagerFactory": "hierarchical",
    "LongHierarchicalLedgerManagerFactory": "longhierarchical",
    "FlatLedgerManagerFactory": "flat",
}
RESOLVERS = {
    "ScriptBasedMapping": "networkTopologyScriptFileName",
    "TableMapping": "networkTopologyTableFileName",
}
NO_HTTP = "elsewhere than on loopback Quire's needs a token and TLS: `bookie.http`"
NO_TLS = "tlsProviderFactoryClass is not set, so that Apache offers no TLS"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about this machine that the translation needs."""

    own_host: Callable[[bool, bool], str]
    """(host name rather than address, short): how Apache's bookie would call itself."""
    own_user: Callable[[], str]
    disk_bytes: Callable[[str], int | None]
    """The size of the disk that a directory is on."""


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """The decision about one key."""

    verdict: Verdict
    why: str
    keys: Mapping[str, object] = field(default_factory=dict)
    """Keys of Quire with their values. For a refused key: those that would help, said elsewhere."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One key of the file, and what its rule may look at."""

    value: str
    all: Mapping[str, str]
    """All keys of the file that have a value."""
    host: HostFacts

    @property
    def tls_on(self) -> bool:
        return "tlsProviderFactoryClass" in self.all

    def wants(self, name: str) -> bool:
        """Whether another key of the file is true. ValueError."""
        return boolean(self.all.get(name, "false"))


def taken(why: str = "", /, **keys: object) -> KeyOutcome:
    """`__` in a name stands for the dot: bookie__port."""
    return KeyOutcome(
        "taken", why, {name.replace("__", "."): value for name, value in keys.items()}
    )


def implied(why: str) -> KeyOutcome:
    return KeyOutcome("implied", why)


def ignored(why: str) -> KeyOutcome:
    return KeyOutcome("ignored", why)


def refused(why: str) -> KeyOutcome:
    return KeyOutcome("refused", why)


# -- values -----------------------------------------------------------------------------------


def boolean(text: str) -> bool:
    if text.lower() in ("true", "yes", "on"):
        return True
    if text.lower() in ("false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def whole(text: str) -> int:
    return int(number(text))


def words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]


def short_class(text: str) -> str:
    return text.rpartition(".")[2]


# -- single keys that need thought ------------------------------------------------------------


def advertised(asked: Asked) -> KeyOutcome:
    return taken(bookie__advertise=asked.value)


def interface(asked: Asked) -> KeyOutcome:
    if "advertisedAddress" in asked.all:
        return ignored("advertisedAddress says it; give --bind for the address to listen on")
    why = f"name the address of {asked.value} with advertisedAddress, or --advertise"
    return KeyOutcome("refused", why, {"bookie.advertise": None})


def uri_from_parts(asked: Asked) -> KeyOutcome:
    if "metadataServiceUri" in asked.all:
        return ignored("metadataServiceUri says it")
    factory = short_class(asked.all.get("ledgerManagerFactoryClass", ""))
    manager = MANAGERS.get(factory) or asked.all.get("ledgerManagerType")
    servers = ";".join(words(asked.value))
    root = asked.all.get("zkLedgersRootPath", "/ledgers")
    return taken(metadata=f"zk{f'+{manager}' if manager else ''}://{servers}{root}")


def part_of_uri(asked: Asked) -> KeyOutcome:
    if "metadataServiceUri" in asked.all:
        return ignored("metadataServiceUri says it")
    return implied("in `metadata`, beside zkServers")


def disk_threshold(key: str, asked: Asked) -> KeyOutcome:
    """Return the share of the smallest disk that must stay free, as the value of `key`."""
    share = number(asked.value)
    if not 0 < share < 1:
        raise ValueError(f"{asked.value} is not a share of a disk")
    sizes = [asked.host.disk_bytes(one) for one in words(asked.all.get("ledgerDirectories", ""))]
    known = [size for size in sizes if size is not None]
    if not known:
        return ignored(f"the size of the disk is not known: set `{key}`")
    free = int(min(known) * (1 - share))
    return KeyOutcome("taken", f"{1 - share:.0%} of the smallest disk", {key: free})


def low_water_threshold(asked: Asked) -> KeyOutcome:
    """Decide `diskUsageLwmThreshold`, which Apache uses as the upper mark of free
    space. It has an effect only if it is below `diskUsageThreshold`."""
    limit = asked.all.get("diskUsageThreshold")
    if limit is None or number(asked.value) > number(limit):
        return ignored("it has a meaning only beside a `diskUsageThreshold` that is larger")
    return disk_threshold("bookie.writable_free_bytes", asked)


def compaction_interval(which: str, asked: Asked) -> KeyOutcome:
    if number(asked.value) <= 0:
        return KeyOutcome("taken", "never", {f"bookie.compact_{which}_ratio": 0.0})
    return KeyOutcome("taken", "", {f"bookie.compact_{which}_interval_s": number(asked.value)})


def compaction_threshold(which: str, asked: Asked) -> KeyOutcome:
    interval = asked.all.get(f"{which}CompactionInterval")
    if interval is not None and number(interval) <= 0:
        return ignored(f"{which}CompactionInterval switches it off")
    return KeyOutcome("taken", "", {f"bookie.compact_{which}_ratio": max(0.0, number(asked.value))})


def compaction_rate(asked: Asked) -> KeyOutcome:
    if not asked.wants("isThrottleByBytes"):
        return ignored("isThrottleByBytes is not true")
    return taken(bookie__compact_bytes_per_s=whole(asked.value))


def tls_factory(asked: Asked) -> KeyOutcome:
    if short_class(asked.value) != "TLSContextFactory":
        return refused("Quire has one implementation of TLS: remove the key, or set bookie.tls")
    if asked.all.get("tlsKeyStoreType", "JKS").upper() != "PEM":
        return refused(
            "Quire reads PEM files, not key stores of Java: export certificate and key, and set "
            "tlsKeyStoreType=PEM, tlsKeyStore (the key), tlsCertificatePath and tlsTrustStore"
        )
    if "tlsCertificatePath" not in asked.all:
        return refused("TLS needs tlsCertificatePath, the certificate in PEM")
    return implied("TLS is offered where there is a certificate")


def tls(name: str, asked: Asked) -> KeyOutcome:
    if not asked.tls_on:
        return ignored(NO_TLS)
    return KeyOutcome("taken", "", {f"bookie.tls.{name}": asked.value})


def tls_clients(asked: Asked) -> KeyOutcome:
    if not asked.tls_on:
        return ignored(NO_TLS)
    wanted = "required" if boolean(asked.value) else "none"
    return taken(bookie__tls__client_certificates=wanted)


def tls_refresh(asked: Asked) -> KeyOutcome:
    if not asked.tls_on or number(asked.value) <= 0:
        return ignored("files that change are followed in any case")
    return taken(bookie__tls__reload_check_s=number(asked.value))


def auth(asked: Asked) -> KeyOutcome:
    if short_class(asked.value) == "AuthenticationDisabledAuthProviderFactory":
        return implied("as without authorised roles")
    if short_class(asked.value) != "BookieAuthZFactory":
        return refused(
            "Quire would let everybody in: it knows clients by their certificates. Set "
            "BookieAuthZFactory, authorizedRoles and TLS, or remove the key"
        )
    if not asked.tls_on or "authorizedRoles" not in asked.all:
        return refused("it needs TLS (tlsProviderFactoryClass) and authorizedRoles")
    return taken(bookie__tls_required=True)


def roles(asked: Asked) -> KeyOutcome:
    if "bookieAuthProviderFactoryClass" not in asked.all:
        return ignored("bookieAuthProviderFactoryClass is not set, so that Apache checks no roles")
    return taken(bookie__authorized_roles=words(asked.value))


def users(asked: Asked) -> KeyOutcome:
    user = asked.host.own_user()
    if user in words(asked.value):
        return implied(f"this process runs as {user}")
    return refused(f"this process runs as {user}: start it as one of these")


def policy(asked: Asked) -> KeyOutcome:
    policy = POLICIES.get(short_class(asked.value))
    if policy is None:
        return refused(f"Quire has {', '.join(POLICIES)}: choose one, or remove the key")
    return taken(client__placement__policy=policy)


def resolver(asked: Asked) -> KeyOutcome:
    name = short_class(asked.value)
    if name == "ZkBookieRackAffinityMapping":
        return taken("Pulsar's table", client__placement__locations="metadata")
    if name in RESOLVERS:
        return implied(f"by {RESOLVERS[name]}")
    return ignored("set `client.placement.locations`: see docs/guides/placement.md")


def http_enabled(asked: Asked) -> KeyOutcome:
    if not boolean(asked.value):
        return implied("it is off unless asked for")
    host, port = asked.all.get("httpServerHost", "0.0.0.0"), asked.all.get("httpServerPort", "8080")
    if host not in ("localhost", "127.0.0.1"):
        return ignored(f"it would answer everybody who reaches {host_port(host, port)}: {NO_HTTP}")
    return taken(bookie__http=host_port(host, port))


def zookeeper_acls(asked: Asked) -> KeyOutcome:
    if not boolean(asked.value):
        return implied("without an identity everyone may do everything, as in Apache's")
    return refused(
        "name a file with user:password in QUIRE_ZOOKEEPER_AUTH_FILE, so that what Quire creates "
        "belongs to it, and remove the key"
    )


def explicit_version(asked: Asked) -> KeyOutcome:
    if whole(asked.value) in (2, 3):
        return taken(client__ledger_metadata_version=whole(asked.value))
    return ignored("new ledgers have format 3")


def bytes_per_s(asked: Asked) -> KeyOutcome:
    rate = number(asked.value)
    return taken(autorecovery__bytes_per_s=rate if rate > 0 else "none")


def unsaid(asked: Asked) -> Iterator[KeyOutcome]:
    """Yield what Apache does where the file says nothing, and Quire would not."""
    if "listeningInterface" not in asked.all:
        yield taken(
            "without listeningInterface Apache listens on all addresses", bookie__bind="0.0.0.0"
        )
    if "advertisedAddress" in asked.all or "listeningInterface" in asked.all:
        return
    by_name = asked.wants("useHostNameAsBookieID")
    host = asked.host.own_host(by_name, asked.wants("useShortHostName"))
    local = not host or host.startswith("127.") or host.partition(".")[0] == "localhost"
    if local and not asked.wants("allowLoopback"):
        yield KeyOutcome(
            "refused",
            "without advertisedAddress Apache takes the address of this host's name, which is "
            f"{host or 'not known'}: name the host under which clients reach it "
            "(advertisedAddress, --advertise)",
            {"bookie.advertise": None},
        )
    else:
        yield taken("the address of this host, as Apache's", bookie__advertise=host or "127.0.0.1")
