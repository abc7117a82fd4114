"""Functions that decide about keys of Apache's `bk_server.conf` by their value.

The table `bk_server.toml` names these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from quire._runtime.units import host_port, percent_text

Verdict = Literal["taken", "implied", "ignored", "refused"]
"""The meaning of one of Apache's keys for a bookie of Quire.

`taken`: it sets keys of Quire. `implied`: Quire always behaves that way. `ignored`: it has no
effect. `refused`: Quire cannot do what the key asks for, so the bookie does not start, unless
another layer of the configuration sets `KeyOutcome.keys`.
"""

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
NO_HTTP = "on other addresses than loopback Quire's HTTP server needs a token and TLS"
NO_TLS = "tlsProviderFactoryClass is not set, so Apache offers no TLS"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about this machine that the translation needs."""

    own_host: Callable[[bool, bool], str]
    """A function that returns the name or address under which Apache's bookie would register. Its
    arguments say whether that is a host name, and whether the host name is shortened."""
    own_user: Callable[[], str]
    disk_bytes: Callable[[str], int | None]
    """A function that returns the size, in bytes, of the disk of a directory, or None if the size
    is not known."""


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """The decision about one key."""

    verdict: Verdict
    why: str
    keys: Mapping[str, object] = field(default_factory=dict)
    """The values of Quire's keys that the key sets, by name. If the key is refused, they are the
    keys that solve the problem if another layer of the configuration sets them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The value of one key of the file, with the facts that its rule may use to decide."""

    value: str
    all: Mapping[str, str]
    """The values of all keys of the file that have one, by key."""
    host: HostFacts

    @property
    def tls_on(self) -> bool:
        """Whether the file switches TLS on."""
        return "tlsProviderFactoryClass" in self.all

    def wants(self, name: str) -> bool:
        """Return whether another key of the file is true. Raises ValueError if it is no boolean."""
        return boolean(self.all.get(name, "false"))


def taken(why: str = "", /, **keys: object) -> KeyOutcome:
    """Return the outcome that sets keys of Quire.

    The names of the arguments are those of the keys, with `__` for a dot: `bookie__port=3181`.
    """
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
    raise ValueError(
        f"{text!r} is neither true nor false (yes and no, on and off are accepted too)"
    )


def number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{text!r} is not a number")
    return found


def whole(text: str) -> int:
    return int(number(text))


def words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]


def short_class(text: str) -> str:
    return text.rpartition(".")[2]


# -- the functions that the table names -------------------------------------------------------


def advertised(asked: Asked) -> KeyOutcome:
    return taken(bookie__advertise=asked.value)


def interface(asked: Asked) -> KeyOutcome:
    if "advertisedAddress" in asked.all:
        return ignored(
            "advertisedAddress sets the address; give `--bind` for the address to listen on"
        )
    why = (
        f"Quire does not look up interfaces: set the address of {asked.value} with "
        "advertisedAddress or `--advertise`"
    )
    return KeyOutcome("refused", why, {"bookie.advertise": None})


def uri_from_parts(asked: Asked) -> KeyOutcome:
    if "metadataServiceUri" in asked.all:
        return ignored("metadataServiceUri is set and counts instead")
    factory = short_class(asked.all.get("ledgerManagerFactoryClass", ""))
    manager = MANAGERS.get(factory) or asked.all.get("ledgerManagerType")
    servers = ";".join(words(asked.value))
    root = asked.all.get("zkLedgersRootPath", "/ledgers")
    return taken(metadata=f"zk{f'+{manager}' if manager else ''}://{servers}{root}")


def part_of_uri(asked: Asked) -> KeyOutcome:
    if "metadataServiceUri" in asked.all:
        return ignored("metadataServiceUri is set and counts instead")
    return implied("it is a part of `metadata`, together with zkServers")


def disk_threshold(key: str, asked: Asked) -> KeyOutcome:
    """Return the outcome that sets `key` to the number of bytes that must stay free.

    Apache's value is the share of a disk that may be used. The smallest disk of the directories
    decides.
    """
    share = number(asked.value)
    if not 0 < share < 1:
        raise ValueError(f"{asked.value} is not a share of the disk: use a number between 0 and 1")
    sizes = [asked.host.disk_bytes(one) for one in words(asked.all.get("ledgerDirectories", ""))]
    known = [size for size in sizes if size is not None]
    if not known:
        return ignored(f"the size of the disk is not known: set `{key}` instead")
    free = int(min(known) * (1 - share))
    return KeyOutcome(
        "taken", f"this is {percent_text(1 - share)} of the smallest disk", {key: free}
    )


def low_water_threshold(asked: Asked) -> KeyOutcome:
    """Return the outcome that sets the free space above which the bookie is writable again.

    Apache uses `diskUsageLwmThreshold` only if `diskUsageThreshold` is set and is not smaller.
    """
    limit = asked.all.get("diskUsageThreshold")
    if limit is None or number(asked.value) > number(limit):
        return ignored("it counts only if diskUsageThreshold is set and not smaller")
    return disk_threshold("bookie.writable_free_bytes", asked)


def compaction_interval(which: str, asked: Asked) -> KeyOutcome:
    if number(asked.value) <= 0:
        return KeyOutcome(
            "taken", f"there are no {which} compactions", {f"bookie.compact_{which}_ratio": 0.0}
        )
    return KeyOutcome("taken", "", {f"bookie.compact_{which}_interval_s": number(asked.value)})


def compaction_threshold(which: str, asked: Asked) -> KeyOutcome:
    interval = asked.all.get(f"{which}CompactionInterval")
    if interval is not None and number(interval) <= 0:
        return ignored(f"{which}CompactionInterval switches these compactions off")
    return KeyOutcome("taken", "", {f"bookie.compact_{which}_ratio": max(0.0, number(asked.value))})


def compaction_rate(asked: Asked) -> KeyOutcome:
    if not asked.wants("isThrottleByBytes"):
        return ignored("isThrottleByBytes is not true")
    return taken(bookie__compact_bytes_per_s=whole(asked.value))


KEEPALIVE = {"serverTcpKeepIdle": 7200, "serverTcpKeepIntvl": 75, "serverTcpKeepCnt": 9}
"""Apache's keys about TCP keep-alive, with the values of Linux for keys that are not set."""


def keepalive(asked: Asked) -> KeyOutcome:
    """Return the outcome that sets the seconds after which a silent client is given up.

    Apache's bookie gives it up after the idle time and the intervals of all probes together.
    """
    if not boolean(asked.all.get("serverSockKeepalive", "true")):
        return ignored("serverSockKeepalive is false, so Apache does not probe idle connections")
    if whole(asked.value) <= 0:
        return ignored("Apache takes 0 or less as not set")
    set_here = {name: whole(asked.all.get(name, "0")) for name in KEEPALIVE}
    idle_s, interval_s, probes = (
        value if value > 0 else KEEPALIVE[name] for name, value in set_here.items()
    )
    return taken(bookie__dead_client_s=float(idle_s + interval_s * probes))


def tls_factory(asked: Asked) -> KeyOutcome:
    if short_class(asked.value) != "TLSContextFactory":
        return refused(
            "Quire has one implementation of TLS: remove the key, or set the table `bookie.tls`"
        )
    if asked.all.get("tlsKeyStoreType", "JKS").upper() != "PEM":
        return refused(
            "Quire reads PEM files, not Java key stores: export the certificate and the key, set "
            "tlsKeyStoreType=PEM, tlsKeyStore (the key), tlsCertificatePath and tlsTrustStore"
        )
    if "tlsCertificatePath" not in asked.all:
        return refused("TLS needs a certificate: set tlsCertificatePath to a PEM file")
    return implied("a bookie with a certificate offers TLS")


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
        return ignored("a bookie always reads changed files again")
    return taken(bookie__tls__reload_check_s=number(asked.value))


def auth(asked: Asked) -> KeyOutcome:
    if short_class(asked.value) == "AuthenticationDisabledAuthProviderFactory":
        return implied("a bookie without authorised roles serves every client")
    if short_class(asked.value) != "BookieAuthZFactory":
        return refused(
            "Quire identifies clients by their certificates only, so it would serve everybody. "
            "Set BookieAuthZFactory, authorizedRoles and TLS, or remove the key"
        )
    if not asked.tls_on or "authorizedRoles" not in asked.all:
        return refused(
            "BookieAuthZFactory needs TLS and roles: set tlsProviderFactoryClass and "
            "authorizedRoles"
        )
    return taken(bookie__tls_required=True)


def roles(asked: Asked) -> KeyOutcome:
    provider = asked.all.get("bookieAuthProviderFactoryClass", "")
    if short_class(provider) != "BookieAuthZFactory":
        return ignored(
            "bookieAuthProviderFactoryClass is not BookieAuthZFactory, so Apache checks no roles"
        )
    return taken(bookie__authorized_roles=words(asked.value))


def users(asked: Asked) -> KeyOutcome:
    user = asked.host.own_user()
    if user in words(asked.value):
        return implied(f"this process runs as {user}, who is permitted")
    return refused(
        f"this process runs as {user}, who is not permitted: start it as one of these users"
    )


def policy(asked: Asked) -> KeyOutcome:
    policy = POLICIES.get(short_class(asked.value))
    if policy is None:
        return refused(
            f"Quire has no such policy: choose one of {', '.join(POLICIES)}, or remove the key"
        )
    return taken(client__placement__policy=policy)


def resolver(asked: Asked) -> KeyOutcome:
    name = short_class(asked.value)
    if name == "ZkBookieRackAffinityMapping":
        return taken("locations come from Pulsar's table", client__placement__locations="metadata")
    if name in RESOLVERS:
        return implied(f"{RESOLVERS[name]} sets the locations")
    return ignored(
        "Quire has no such resolver: set `client.placement.locations` "
        "(docs/guides/cluster/placement.md)"
    )


def http_enabled(asked: Asked) -> KeyOutcome:
    if not boolean(asked.value):
        return implied("the HTTP server runs only if `bookie.http` is set")
    host, port = asked.all.get("httpServerHost", "0.0.0.0"), asked.all.get("httpServerPort", "8080")
    if host not in ("localhost", "127.0.0.1"):
        return ignored(
            f"everybody who reaches {host_port(host, port)} could use it. {NO_HTTP}: set "
            "`bookie.http`"
        )
    return taken(bookie__http=host_port(host, port))


def zookeeper_acls(asked: Asked) -> KeyOutcome:
    if not boolean(asked.value):
        return implied("without an identity, everybody may change the nodes, as with Apache")
    return refused(
        "set QUIRE_ZOOKEEPER_AUTH_FILE to a file with user:password, so that the nodes belong to "
        "this user, and remove the key"
    )


def explicit_version(asked: Asked) -> KeyOutcome:
    if whole(asked.value) in (2, 3):
        return taken(client__ledger_metadata_version=whole(asked.value))
    return refused(
        f"{asked.value} is not a format in which Quire can store new ledgers. Set it to 2 or 3, or "
        "remove the key, and Quire uses format 3"
    )


def bytes_per_s(asked: Asked) -> KeyOutcome:
    rate = number(asked.value)
    return taken(autorecovery__bytes_per_s=rate if rate > 0 else "none")


def unsaid(asked: Asked) -> Iterator[KeyOutcome]:
    """Yield the outcomes for keys that the file lacks and whose defaults differ from Quire's."""
    if "listeningInterface" not in asked.all:
        yield taken(
            "Apache listens on all addresses if listeningInterface is not set",
            bookie__bind="0.0.0.0",
        )
    if "advertisedAddress" in asked.all or "listeningInterface" in asked.all:
        return
    by_name = asked.wants("useHostNameAsBookieID")
    host = asked.host.own_host(by_name, asked.wants("useShortHostName"))
    local = not host or host.startswith("127.") or host.partition(".")[0] == "localhost"
    if local and not asked.wants("allowLoopback"):
        yield KeyOutcome(
            "refused",
            "Apache advertises the address of this host's name if advertisedAddress is not set. "
            f"That address is {host or 'not known'}: name the host under which clients reach this "
            "bookie (advertisedAddress, `--advertise`)",
            {"bookie.advertise": None},
        )
    else:
        yield taken(
            "Apache advertises the address of this host if advertisedAddress is not set",
            bookie__advertise=host or "127.0.0.1",
        )
