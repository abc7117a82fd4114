"""`quire.Client` and `quire.connect`.

The package `quire.client` knows ledgers only, because streams, objects and state machines are built
on it. This module adds their factories to the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from quire._runtime.opening import Opening, opening
from quire.client.client import LedgerClient, connected
from quire.config import ClientConfig
from quire.errors import check_type
from quire.metadata import ZooKeeperOptions

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

    from quire.streams.namespace.namespace import Namespace
    from quire.streams.objects.objects import Objects
    from quire.streams.statemachine.durable_dict import DurableDict
    from quire.streams.statemachine.state_machine import Follower, Leader, StateMachine

ResultT = TypeVar("ResultT")


class Client(LedgerClient):
    """A connection to one cluster. `quire.connect` returns it.

    One client per process is enough. It can be used only in the event loop in which it was made.
    Once it is closed, its calls raise ClientClosedError.

    A factory opens what exists. It creates what is missing only with `create=True`. Await a factory
    for the handle, or enter it with `async with` to close the handle at the end of the block.
    """

    # Programs that use ledgers alone do not load what is imported here.

    @opening
    async def namespace(
        self,
        path: str,
        *,
        create: bool = False,
        settings: Mapping[str, Any] | None = None,
        password: bytes = b"",
    ) -> Namespace:
        """Open a namespace of streams, and create it first if `create` is given.

        A namespace that Java's DistributedLog made can be opened as well. On ZooKeeper a new
        namespace is bound to the client's cluster, so that Java's tools find it. Cancelling this
        call is safe; a namespace may then have been created.

        Args:
            path: The path of the namespace, such as "/team" or "/team/orders".
            create: Whether to create the namespace if it does not exist.
            settings: Settings to add to the namespace's own settings. They are added to an existing
                namespace too, but only with `create`.
            password: The password of the ledgers of its streams.

        Returns:
            The open namespace. If `create` was given, it exists durably in the metadata store.

        Raises:
            NoSuchNamespaceError: The namespace does not exist.
            UsageError: The path or a setting is not valid, settings were passed without `create`,
                or the namespace is federated or bound to another cluster.
            MetadataUnavailableError: The metadata store does not answer. With `create` the
                namespace may have been created.
            MetadataError: The settings that the namespace has cannot be decoded, or the metadata
                store refuses this client.
            ClientClosedError: The client is closed.
        """
        from quire.streams.namespace.namespace import open_namespace

        self._check_open()
        return await open_namespace(self, path, create=create, settings=settings, password=password)

    def objects(self, bucket: str = "default") -> Objects:
        """Return a handle for the objects of one bucket.

        This call does no I/O, and it does not create anything: a bucket exists as soon as it has an
        object.

        Args:
            bucket: The name of the bucket. Objects in different buckets may have the same name.

        Returns:
            The handle. It holds no resources and need not be closed.

        Raises:
            UsageError: The name of the bucket is not valid.
            ClientClosedError: The client is closed.
        """
        from quire.streams.objects.objects import Objects

        self._check_open()
        return Objects(self, bucket)

    @overload
    def state_machine(
        self,
        namespace: str,
        name: str,
        machine: StateMachine[ResultT],
        *,
        follow: Literal[False] = ...,
        create: bool = ...,
        snapshot_every: int = ...,
        password: bytes = ...,
    ) -> Opening[Leader[ResultT]]: ...

    @overload
    def state_machine(
        self,
        namespace: str,
        name: str,
        machine: StateMachine[ResultT],
        *,
        follow: Literal[True],
        create: bool = ...,
        snapshot_every: int = ...,
        password: bytes = ...,
    ) -> Opening[Follower[ResultT]]: ...

    @overload
    def state_machine(
        self,
        namespace: str,
        name: str,
        machine: StateMachine[ResultT],
        *,
        follow: bool,
        create: bool = ...,
        snapshot_every: int = ...,
        password: bytes = ...,
    ) -> Opening[Leader[ResultT] | Follower[ResultT]]: ...

    @opening
    async def state_machine(
        self,
        namespace: str,
        name: str,
        machine: StateMachine[ResultT],
        *,
        follow: bool = False,
        create: bool = False,
        snapshot_every: int = 0,
        password: bytes = b"",
    ) -> Leader[ResultT] | Follower[ResultT]:
        """Open a replicated state machine, and lead it or follow it.

        A leader fences the previous leader, brings the machine to the state that its predecessor
        had reached, and executes commands. A follower applies the commands that leaders execute. If
        this call fails or is cancelled, no command is lost, and the previous leader may or may not
        be fenced.

        Args:
            namespace: The path of the namespace that holds the machine's stream.
            name: The name of that stream.
            machine: A new machine, without state.
            follow: Whether to follow the machine instead of leading it.
            create: Whether to create the namespace and the stream if they do not exist.
            snapshot_every: The number of commands after which a leader takes a snapshot. 0 means
                never. A follower takes none.
            password: The password of the ledgers of the stream.

        Returns:
            The leader, or with `follow` the follower. A leader has applied every command that was
            acknowledged before. A follower has restored the newest snapshot, and applies the
            commands after it in the background.

        Raises:
            NoSuchNamespaceError: The namespace does not exist.
            NoSuchStreamError: The stream does not exist.
            RecoveryError: Too few bookies answer. Call this again.
            StreamFencedError: Another leader took over meanwhile.
            StreamEndedError: The stream was ended, so that no leader can open it.
            StreamDamagedError: Commands or the snapshot are lost or cannot be decoded.
            UsageError: An argument is not valid, or `machine` does not have the methods of a state
                machine.
            QuireError: The namespace, the stream or the snapshot could not be opened for another
                reason. See `namespace`, `Namespace.open_writer` and `Objects.get`.
            Exception: The error that the machine's `restore` raised.
        """
        from quire.streams.statemachine import state_machine

        state_machine.check_machine(machine)
        check_type("follow", follow, bool)
        streams = await self.namespace(namespace, create=create, password=password)
        replica: Leader[ResultT] | Follower[ResultT]
        try:
            if follow:
                if create and not await streams.exists(name):
                    await streams.create_stream(name)
                replica = await state_machine.follow(streams, name, machine)
            else:
                replica = await state_machine.lead(
                    streams, name, machine, snapshot_every=snapshot_every, create=create
                )
        except BaseException:
            await streams.close()
            raise
        replica.owns_streams = True
        return replica

    @opening
    async def durable_dict(
        self,
        namespace: str,
        name: str,
        *,
        create: bool = False,
        snapshot_every: int = 10_000,
        password: bytes = b"",
    ) -> DurableDict:
        """Open a dictionary whose changes are durable and replicated.

        It is a small state machine, and this call makes the caller its leader. A process that had
        the dictionary open before can no longer change it. If this call fails or is cancelled, no
        change is lost, and that process may or may not be able to make further changes.

        Args:
            namespace: The path of the namespace that holds the dictionary's stream.
            name: The name of that stream.
            create: Whether to create the namespace and the stream if they do not exist.
            snapshot_every: The number of changes after which a snapshot is taken. 0 means never.
            password: The password of the ledgers of the stream.

        Returns:
            The dictionary, with every change that was acknowledged before.

        Raises:
            NoSuchNamespaceError: The namespace does not exist.
            NoSuchStreamError: The stream does not exist.
            RecoveryError: Too few bookies answer. Call this again.
            StreamFencedError: Another process opened the dictionary meanwhile.
            StreamEndedError: The stream was ended, so that nobody can open it for writing.
            StreamDamagedError: Changes or the snapshot are lost or cannot be decoded.
            UsageError: An argument is not valid, or the stream holds records that are not changes
                of a dictionary.
            QuireError: The namespace, the stream or the snapshot could not be opened for another
                reason. See `namespace`, `Namespace.open_writer` and `Objects.get`.
        """
        from quire.streams.statemachine.durable_dict import open_dict

        streams = await self.namespace(namespace, create=create, password=password)
        try:
            opened = await open_dict(streams, name, create=create, snapshot_every=snapshot_every)
        except BaseException:
            await streams.close()
            raise
        opened.leader.owns_streams = True
        return opened


@opening
async def connect(
    uri: str,
    *,
    config: ClientConfig | None = None,
    zookeeper: ZooKeeperOptions | None = None,
    tracer: Tracer | None = None,
    meter: Meter | None = None,
) -> Client:
    """Connect to a cluster.

        client = await connect(uri)

        async with connect(uri) as client:
            ...

    Only the metadata store is contacted; connections to bookies are made when they are needed.
    Cancelling this call is safe.

    Args:
        uri: The metadata store: `sqlite:///FILE` or `zk+hierarchical://HOST:PORT/ledgers`.
        config: Limits, time-outs, TLS and placement. The default is `ClientConfig()`.
        zookeeper: The client's identity in ZooKeeper, and the access to the nodes that it creates.
            By default both are taken from the environment (`QUIRE_ZOOKEEPER_AUTH_FILE`).
        tracer: An OpenTelemetry tracer for spans of calls and batches (see
            docs/guides/programs/client-observability.md).
        meter: An OpenTelemetry meter, which reports the metrics of the client (see the same page).

    Returns:
        The client. Close it when the program ends.

    Raises:
        MetadataURIError: `uri` is not the URI of a metadata store.
        MetadataUnavailableError: The metadata store does not answer.
        MetadataDeniedError: The metadata store refuses this identity.
        ClusterNotInitialisedError: The metadata store holds no cluster.
        MetadataError: The metadata store holds something that cannot be used.
        UsageError: An argument is not valid, the placement policy cannot be used, or the identity
            for ZooKeeper cannot be read.
        TlsConfigError: A certificate, key or authority file cannot be used.
    """
    return await connected(
        Client, uri, config=config, zookeeper=zookeeper, tracer=tracer, meter=meter
    )
