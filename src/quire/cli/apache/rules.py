"""How keys of Apache's `bk_server.conf` become keys of Quire's. `apache_keys` has the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quire._runtime.units import host_port
from quire.cli.apache.conf import Machine, Outcome, Verdict, ignored, implied, refused, taken

Apply = Callable[[str, Mapping[str, str], Machine], Outcome]

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


@dataclass(frozen=True, slots=True)
class Rule:
    verdict: Verdict
    """For the usual values; `apply` may see it otherwise."""
    text: str
    """For the document: the key of Quire and how the value changes, or why it is left out."""
    apply: Apply


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


# -- kinds of rules ---------------------------------------------------------------------------


def key(name: str, convert: Callable[[str], Any] = str, how: str = "") -> Rule:
    """Taken as it is, or converted."""
    text = f"`{name}`" + (f": {how}" if how else "")
    return Rule(
        "taken", text, lambda value, all, machine: Outcome("taken", how, {name: convert(value)})
    )


def seconds_of_ms(name: str, never: str = "") -> Rule:
    """`never`: what 0 and less mean in Apache's, if it is Quire's 0."""

    def convert(text: str) -> float:
        value = number(text) / 1000
        return max(0.0, value) if never else value

    return key(name, convert, "milliseconds become seconds" + (f"; {never}" if never else ""))


def interval_s(name: str) -> Rule:
    return key(name, lambda text: max(0.0, number(text)), "0 and less: never")


def always(why: str, otherwise: Outcome | None = None, needs: bool = True) -> Rule:
    """Holds of every bookie of Quire; where the file wants the opposite, `otherwise`."""

    def apply(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
        if otherwise is not None and boolean(value) is not needs:
            return otherwise
        return implied(why)

    text = why
    if otherwise is not None:
        text += f". `{str(not needs).lower()}`: {otherwise.verdict}: {otherwise.why}"
    return Rule("implied", text, apply)


def skip(why: str) -> Rule:
    return Rule("ignored", why, lambda value, all, machine: ignored(why))


NO_JOURNAL = "there is no separate journal: the log that is synced is where entries live"
NO_ENTRY_LOGGER = "there is one kind of storage: a write-once log whose segments hold their index"
NO_POOLS = (
    "one event loop, and threads for each disk; bounds are in bytes (`bookie.max_queued_bytes`)"
)
NO_JVM = "of the Java virtual machine, or of Netty"
NO_HTTP = "elsewhere than on loopback Quire's needs a token and TLS: `bookie.http`"
PART_OF_HTTP = "a part of `bookie.http`: see httpServerEnabled"
NOT_DURABLE = (
    "entries would be acknowledged that are on no disk. Quire does not do that: remove the key. "
    "Writers that can wait for `force` use deferred sync"
)
NO_READ_ONLY = (
    "Quire has no such start: remove the key. `quire bookie decommission` empties a bookie"
)
TLS_FILES = {
    "tlsKeyStore": "private_key",
    "tlsKeyStorePasswordPath": "key_password_file",
    "tlsTrustStore": "ca",
    "tlsCertificatePath": "certificate",
}
NO_SERVICE = "Apache's table service is not part of Quire"
CLIENT_ONLY = "of Apache's client; Quire's replicates without it"
OLD_METADATA = "the URI of the metadata store says it all"


def implied_rule(why: str) -> Rule:
    return Rule("implied", why, lambda value, all, machine: implied(why))


# -- single keys that need thought ------------------------------------------------------------


def advertised(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    return taken("", bookie__advertise=value)


def interface(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if "advertisedAddress" in all:
        return ignored("advertisedAddress says it; give --bind for the address to listen on")
    why = f"name the address of {value} with advertisedAddress, or --advertise"
    return Outcome("refused", why, {"bookie.advertise": None})


def uri_from_parts(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if "metadataServiceUri" in all:
        return ignored("metadataServiceUri says it")
    factory = short_class(all.get("ledgerManagerFactoryClass", ""))
    manager = MANAGERS.get(factory) or all.get("ledgerManagerType")
    servers = ";".join(words(value))
    root = all.get("zkLedgersRootPath", "/ledgers")
    return taken("", metadata=f"zk{f'+{manager}' if manager else ''}://{servers}{root}")


def part_of_uri(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if "metadataServiceUri" in all:
        return ignored("metadataServiceUri says it")
    return implied("in `metadata`, beside zkServers")


def disk_threshold(key: str) -> Apply:
    """Return the rule of a share of the disk that may be used: the rest of it goes to `key`."""

    def apply(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
        share = number(value)
        if not 0 < share < 1:
            raise ValueError(f"{value} is not a share of a disk")
        sizes = [machine.disk_bytes(one) for one in words(all.get("ledgerDirectories", ""))]
        known = [size for size in sizes if size is not None]
        if not known:
            return ignored(f"the size of the disk is not known: set `{key}`")
        free = int(min(known) * (1 - share))
        return Outcome("taken", f"{1 - share:.0%} of the smallest disk", {key: free})

    return apply


def low_water_threshold(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    """Return the rule of `diskUsageLwmThreshold`, which Apache uses as the upper mark of free
    space. It has an effect only if it is below `diskUsageThreshold`."""
    limit = all.get("diskUsageThreshold")
    if limit is None or number(value) > number(limit):
        return ignored("it has a meaning only beside a `diskUsageThreshold` that is larger")
    return disk_threshold("bookie.writable_free_bytes")(value, all, machine)


def compaction_interval(which: str) -> Apply:
    def apply(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
        if number(value) <= 0:
            return Outcome("taken", "never", {f"bookie.compact_{which}_ratio": 0.0})
        return Outcome("taken", "", {f"bookie.compact_{which}_interval_s": number(value)})

    return apply


def compaction_threshold(which: str) -> Apply:
    def apply(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
        interval = all.get(f"{which}CompactionInterval")
        if interval is not None and number(interval) <= 0:
            return ignored(f"{which}CompactionInterval switches it off")
        return Outcome("taken", "", {f"bookie.compact_{which}_ratio": max(0.0, number(value))})

    return apply


def compaction_rate(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if not boolean(all.get("isThrottleByBytes", "false")):
        return ignored("isThrottleByBytes is not true")
    return taken("", bookie__compact_bytes_per_s=whole(value))


def tls_on(all: Mapping[str, str]) -> bool:
    return "tlsProviderFactoryClass" in all


def tls_factory(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if short_class(value) != "TLSContextFactory":
        return refused("Quire has one implementation of TLS: remove the key, or set bookie.tls")
    if all.get("tlsKeyStoreType", "JKS").upper() != "PEM":
        return refused(
            "Quire reads PEM files, not key stores of Java: export certificate and key, and set "
            "tlsKeyStoreType=PEM, tlsKeyStore (the key), tlsCertificatePath and tlsTrustStore"
        )
    if "tlsCertificatePath" not in all:
        return refused("TLS needs tlsCertificatePath, the certificate in PEM")
    return implied("TLS is offered where there is a certificate")


def tls(name: str) -> Apply:
    def apply(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
        if not tls_on(all):
            return ignored("tlsProviderFactoryClass is not set, so that Apache offers no TLS")
        return Outcome("taken", "", {f"bookie.tls.{name}": value})

    return apply


def tls_clients(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if not tls_on(all):
        return ignored("tlsProviderFactoryClass is not set, so that Apache offers no TLS")
    wanted = "required" if boolean(value) else "none"
    return taken("", bookie__tls__client_certificates=wanted)


def tls_refresh(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if not tls_on(all) or number(value) <= 0:
        return ignored("files that change are followed in any case")
    return taken("", bookie__tls__reload_check_s=number(value))


def auth(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if short_class(value) == "AuthenticationDisabledAuthProviderFactory":
        return implied("as without authorised roles")
    if short_class(value) != "BookieAuthZFactory":
        return refused(
            "Quire would let everybody in: it knows clients by their certificates. Set "
            "BookieAuthZFactory, authorizedRoles and TLS, or remove the key"
        )
    if not tls_on(all) or "authorizedRoles" not in all:
        return refused("it needs TLS (tlsProviderFactoryClass) and authorizedRoles")
    return taken("", bookie__tls_required=True)


def roles(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if "bookieAuthProviderFactoryClass" not in all:
        return ignored("bookieAuthProviderFactoryClass is not set, so that Apache checks no roles")
    return taken("", bookie__authorized_roles=words(value))


def users(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    user = machine.own_user()
    if user in words(value):
        return implied(f"this process runs as {user}")
    return refused(f"this process runs as {user}: start it as one of these")


def policy(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    policy = POLICIES.get(short_class(value))
    if policy is None:
        return refused(f"Quire has {', '.join(POLICIES)}: choose one, or remove the key")
    return taken("", client__placement__policy=policy)


def resolver(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    known = {"ScriptBasedMapping": "networkTopologyScriptFileName",
             "TableMapping": "networkTopologyTableFileName"}  # fmt: skip
    name = short_class(value)
    if name == "ZkBookieRackAffinityMapping":
        return taken("Pulsar's table", client__placement__locations="metadata")
    if name in known:
        return implied(f"by {known[name]}")
    return ignored("set `client.placement.locations`: see docs/placement.md")


def http_enabled(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if not boolean(value):
        return implied("it is off unless asked for")
    host, port = all.get("httpServerHost", "0.0.0.0"), all.get("httpServerPort", "8080")
    if host not in ("localhost", "127.0.0.1"):
        return ignored(f"it would answer everybody who reaches {host_port(host, port)}: {NO_HTTP}")
    return taken("", bookie__http=host_port(host, port))


def zookeeper_acls(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if not boolean(value):
        return implied("without an identity everyone may do everything, as in Apache's")
    return refused(
        "name a file with user:password in QUIRE_ZOOKEEPER_AUTH_FILE, so that what Quire creates "
        "belongs to it, and remove the key"
    )


def explicit_version(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    if whole(value) in (2, 3):
        return taken("", client__ledger_metadata_version=whole(value))
    return ignored("new ledgers have format 3")


def bytes_per_s(value: str, all: Mapping[str, str], machine: Machine) -> Outcome:
    rate = number(value)
    return taken("", autorecovery__bytes_per_s=rate if rate > 0 else "none")


def unsaid(all: Mapping[str, str], machine: Machine) -> Iterator[Outcome]:
    """What Apache does where nothing is said, and Quire would not."""
    if "listeningInterface" not in all:
        yield taken(
            "without listeningInterface Apache listens on all addresses", bookie__bind="0.0.0.0"
        )
    if "advertisedAddress" in all or "listeningInterface" in all:
        return
    by_name = boolean(all.get("useHostNameAsBookieID", "false"))
    host = machine.own_host(by_name, boolean(all.get("useShortHostName", "false")))
    local = not host or host.startswith("127.") or host.partition(".")[0] == "localhost"
    if local and not boolean(all.get("allowLoopback", "false")):
        yield Outcome(
            "refused",
            "without advertisedAddress Apache takes the address of this host's name, which is "
            f"{host or 'not known'}: name the host under which clients reach it "
            "(advertisedAddress, --advertise)",
            {"bookie.advertise": None},
        )
    else:
        yield taken("the address of this host, as Apache's", bookie__advertise=host or "127.0.0.1")
