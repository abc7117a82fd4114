"""The client that `quire.connect` gives: ledgers, and what is built on them.

The room `client` knows ledgers only, because streams, objects and state machines stand above it.
This module adds their factories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from quire._runtime.opening import Opening, opening
from quire.client.client import LedgerClient, connected
from quire.config import ClientConfig
from quire.metadata import ZooKeeperOptions

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from quire.streams.namespace.namespace import Namespace
    from quire.streams.objects.objects import Objects
    from quire.streams.statemachine.durable_dict import DurableDict
    from quire.streams.statemachine.state_machine import Follower, Leader, StateMachine

ResultT = TypeVar("ResultT")


class Client(LedgerClient):
    """A connection to one cluster, made by `quire.connect`. One per process is enough; it belongs
    to the event loop that made it.

    Every factory can be awaited for the handle, or entered with `async with`. It opens what exists,
    and makes what is missing only with `create=True`.
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
        """Open a namespace of streams.

        A namespace that Java made is opened as well. On ZooKeeper a new namespace is bound to the
        client's cluster, so that Java's tools find it. Cancel-safe.

        Args:
            path: The path of the namespace, such as "/team" or "/team/orders".
            create: Make the namespace if there is none.
            settings: With `create`, added to the namespace's own settings, also if it exists.
            password: The password of the ledgers of its streams.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
            UsageError: The path or a setting is not valid, or the namespace is federated or bound
                to another cluster.
        """
        from quire.streams.namespace.namespace import open_namespace

        self._check_open()
        return await open_namespace(self, path, create=create, settings=settings, password=password)

    def objects(self, bucket: str = "default") -> Objects:
        """The objects of one bucket. Buckets are not created: a bucket is a part of the names.

        Raises:
            UsageError: The name of the bucket is not valid.
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

        A leader fences the leader before it, brings the machine to where that one was, and takes
        commands. A follower applies what leaders execute. Nothing is lost if this fails: call it
        again.

        Args:
            namespace: The path of the namespace that holds the machine's stream.
            name: The name of that stream.
            machine: A new machine, without state.
            follow: Follow instead of leading.
            create: Make the namespace and the stream if they do not exist.
            snapshot_every: The number of commands after which a leader takes a snapshot; 0 for
                never.
            password: The password of the ledgers of the stream.

        Raises:
            NoSuchNamespaceError, NoSuchStreamError: There is no such namespace or stream.
            RecoveryError: Too few bookies answer.
            StreamFencedError: Yet another leader came.
            StreamDamagedError: The commands or the snapshot cannot be understood, or are lost.
        """
        from quire.streams.statemachine import state_machine

        state_machine.check_machine(machine)
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
        """Open a dictionary that survives: a small state machine. Whoever had it open can change it
        no more.

        Takes the arguments of `state_machine`, and raises what that raises.
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
) -> Client:
    """Connect to a cluster: `client = await connect(uri)` or `async with connect(uri) as client`.

    Args:
        uri: The metadata store: `sqlite:///FILE` or `zk+hierarchical://HOST:PORT/ledgers`.
        config: Limits, time-outs, TLS and placement.
        zookeeper: Who the client is to ZooKeeper. By default the environment says so
            (`QUIRE_ZOOKEEPER_AUTH_FILE`).
        tracer: A tracer of OpenTelemetry, for spans of calls and batches
            (docs/guides/client-observability.md).

    Raises:
        MetadataURIError: `uri` is not the URI of a metadata store.
        MetadataUnavailableError: The metadata store does not answer.
        MetadataDeniedError: The metadata store refuses access.
        ClusterNotInitialisedError: The metadata store holds no cluster.
    """
    return await connected(Client, uri, config=config, zookeeper=zookeeper, tracer=tracer)
