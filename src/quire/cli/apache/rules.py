"""Functions that translate the keys of Apache's `bk_server.conf` that need more than a table row.

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
NO_HTTP = "except on loopback, Quire's HTTP server requires a token and TLS: set `bookie.http`"
NO_TLS = "tlsProviderFactoryClass is not set, so Apache does not offer TLS"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about this machine that the translation needs."""

    own_host: Callable[[bool, bool], str]
    """A function that returns the host in the id of Apache's bookie. The arguments say whether that
    is the host name instead of the address, and whether the name is short."""
    own_user: Callable[[], str]
    disk_bytes: Callable[[str], int | None]
    """The size of the disk that a directory is on."""


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """The decision about one key."""

    verdict: Verdict
    why: str
    keys: Mapping[str, object] = field(default_factory=dict)
    """Keys of Quire with their values. For a refused key, these are keys which, if they are set
    elsewhere, resolve the refusal."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One key of the file, with the information that its rule may use."""

    value: str
    all: Mapping[str, str]
    """All keys of the file that have a value."""
    host: HostFacts

    @property
    def tls_on(self) -> bool:
        return "tlsProviderFactoryClass" in self.all

    def wants(self, name: str) -> bool:
        """Return whether another key of the file is true. Raises ValueError."""
        return boolean(self.all.get(name, "false"))


def taken(why: str = "", /, **keys: object) -> KeyOutcome:
    """Return the outcome of a taken key. `__` in a name stands for a dot: bookie__port."""
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
        raise ValueError(f"{text!r} is not a number") from None


def whole(text: str) -> int:
    return int(number(text))


def words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]


def short_class(text: str) -> str:
    return text.rpartition(".")[2]


# -- single keys ------------------------------------------------------------------------------


def advertised(asked: Asked) -> KeyOutcome:
    return taken(bookie__advertise=asked.value)


def interface(asked: Asked) -> KeyOutcome:
    if "advertisedAddress" in asked.all:
        return ignored("advertisedAddress is set; use --bind for the address to listen on")
    why = f"set advertisedAddress or --advertise to the address of {asked.value}"
    return KeyOutcome("refused", why, {"bookie.advertise": None})


def uri_from_parts(asked: Asked) -> KeyOutcome:
    if "metadataServiceUri" in asked.all:
        return ignored("metadataServiceUri overrides it")
    factory = short_class(asked.all.get("ledgerManagerFactoryClass", ""))
    manager = MANAGERS.get(factory) or asked.all.get("ledgerManagerType")
    servers = ";".join(words(asked.value))
    root = asked.all.get("zkLedgersRootPath", "/ledgers")
    return taken(metadata=f"zk{f'+{manager}' if manager else ''}://{servers}{root}")


def part_of_uri(asked: Asked) -> KeyOutcome:
    if "metadataServiceUri" in asked.all:
        return ignored("metadataServiceUri overrides it")
    return implied("it is a part of `metadata`, together with zkServers")


def disk_threshold(key: str, asked: Asked) -> KeyOutcome:
    """Return the share of the smallest disk that must stay free, as the value of `key`."""
    share = number(asked.value)
    if not 0 < share < 1:
        raise ValueError(f"{asked.value} is not a fraction between 0 and 1")
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
        return ignored("it has an effect only with a larger `diskUsageThreshold`")
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
        return refused("Quire has only one TLS implementation: remove the key, or set bookie.tls")
    if asked.all.get("tlsKeyStoreType", "JKS").upper() != "PEM":
        return refused(
            "Quire reads PEM files, not Java key stores: export the certificate and the key, and "
            "set tlsKeyStoreType=PEM, tlsKeyStore (the key), tlsCertificatePath and tlsTrustStore"
        )
    if "tlsCertificatePath" not in asked.all:
        return refused("TLS requires tlsCertificatePath, the certificate in PEM format")
    return implied("TLS is offered if there is a certificate")


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
        return ignored("files that change are always reloaded")
    return taken(bookie__tls__reload_check_s=number(asked.value))


def auth(asked: Asked) -> KeyOutcome:
    if short_class(asked.value) == "AuthenticationDisabledAuthProviderFactory":
        return implied("Quire does the same if no roles are authorised")
    if short_class(asked.value) != "BookieAuthZFactory":
        return refused(
            "Quire would admit everybody, because it identifies clients only by their "
            "certificates. Set BookieAuthZFactory, authorizedRoles and TLS, or remove the key"
        )
    if not asked.tls_on or "authorizedRoles" not in asked.all:
        return refused("it requires TLS (tlsProviderFactoryClass) and authorizedRoles")
    return taken(bookie__tls_required=True)


def roles(asked: Asked) -> KeyOutcome:
    if "bookieAuthProviderFactoryClass" not in asked.all:
        return ignored("bookieAuthProviderFactoryClass is not set, so Apache does not check roles")
    return taken(bookie__authorized_roles=words(asked.value))


def users(asked: Asked) -> KeyOutcome:
    user = asked.host.own_user()
    if user in words(asked.value):
        return implied(f"this process runs as {user}")
    return refused(f"this process runs as {user}: start it as one of these users")


def policy(asked: Asked) -> KeyOutcome:
    policy = POLICIES.get(short_class(asked.value))
    if policy is None:
        return refused(f"Quire has only {', '.join(POLICIES)}: choose one, or remove the key")
    return taken(client__placement__policy=policy)


def resolver(asked: Asked) -> KeyOutcome:
    name = short_class(asked.value)
    if name == "ZkBookieRackAffinityMapping":
        return taken("Pulsar's table", client__placement__locations="metadata")
    if name in RESOLVERS:
        return implied(f"{RESOLVERS[name]} selects it")
    return ignored("set `client.placement.locations`: see docs/guides/placement.md")


def http_enabled(asked: Asked) -> KeyOutcome:
    if not boolean(asked.value):
        return implied("it is off by default")
    host, port = asked.all.get("httpServerHost", "0.0.0.0"), asked.all.get("httpServerPort", "8080")
    if host not in ("localhost", "127.0.0.1"):
        return ignored(
            f"it would answer everybody who can reach {host_port(host, port)}; {NO_HTTP}"
        )
    return taken(bookie__http=host_port(host, port))


def zookeeper_acls(asked: Asked) -> KeyOutcome:
    if not boolean(asked.value):
        return implied("without an identity, everyone has all permissions, as with Apache")
    return refused(
        "set QUIRE_ZOOKEEPER_AUTH_FILE to a file with user:password, so that the nodes that Quire "
        "creates belong to this user, and remove the key"
    )


def explicit_version(asked: Asked) -> KeyOutcome:
    if whole(asked.value) in (2, 3):
        return taken(client__ledger_metadata_version=whole(asked.value))
    return ignored("new ledgers have format 3")


def bytes_per_s(asked: Asked) -> KeyOutcome:
    rate = number(asked.value)
    return taken(autorecovery__bytes_per_s=rate if rate > 0 else "none")


def unsaid(asked: Asked) -> Iterator[KeyOutcome]:
    """Yield outcomes for what Apache does by default and Quire does not."""
    if "listeningInterface" not in asked.all:
        yield taken(
            "without listeningInterface, Apache listens on all addresses", bookie__bind="0.0.0.0"
        )
    if "advertisedAddress" in asked.all or "listeningInterface" in asked.all:
        return
    by_name = asked.wants("useHostNameAsBookieID")
    host = asked.host.own_host(by_name, asked.wants("useShortHostName"))
    local = not host or host.startswith("127.") or host.partition(".")[0] == "localhost"
    if local and not asked.wants("allowLoopback"):
        yield KeyOutcome(
            "refused",
            "without advertisedAddress, Apache uses the address of this host's name, which is "
            f"{host or 'unknown'}: set the host at which clients reach the bookie "
            "(advertisedAddress or --advertise)",
            {"bookie.advertise": None},
        )
    else:
        yield taken("the address of this host, as with Apache",
                    bookie__advertise=host or "127.0.0.1")  # fmt: skip
