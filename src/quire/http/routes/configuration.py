"""The routes about configuration: that of a process, and that of the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from quire._runtime.names.suggest import did_you_mean
from quire.bookie.server import Bookie
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import BookieUnavailableError, UsageError
from quire.http.routes.answering import answering
from quire.http.routes.cluster import Connect
from quire.http.server.api import Call, Field, Route
from quire.http.server.error_responses import NotFoundError
from quire.http.views.cluster_settings import cluster_settings
from quire.http.views.untrusted import taken
from quire.http.watch.bookie_reports import why_not
from quire.http.watch.rates import LOOK_TIMEOUT_S, Fetch, http_url

PREFIX = "/api/v1/quire"
PATH = f"{PREFIX}/configuration"

_SHAPE = {
    "process": str,
    "version": str,
    "file": str,
    "keys": [
        {
            "key": str,
            "value": str,
            "default": str,
            "changed": bool,
            "origin": str,
            "unit": str,
            "environment": str,
            "meaning": str,
            "applies": bool,
        }
    ],
}
"""The shape of a bookie's answer about its configuration, for `untrusted.taken`. Any of the texts
may be null."""


class ConfigurationRoutes:
    """The routes about configuration."""

    def __init__(
        self,
        connect: Connect,
        fetch: Fetch,
        settings: Mapping[str, Any] | None,
        process: str,
        version: str,
        own: Bookie | None = None,
    ) -> None:
        """Create the routes.

        Args:
            connect: Returns the client.
            fetch: Reads the text at a URL.
            settings: The configuration of this process (`quire.configuration.report`). None if the
                process was not started from a command.
            process: The name of this process.
            version: The version of Quire of this process.
            own: The bookie of this process, if it has one.
        """
        self._connect = connect
        self._fetch = fetch
        self._settings = settings
        self._process = process
        self._version = version
        self._own = own

    def routes(self) -> list[Route]:
        bookie = Field("bookie", "string", "the bookie whose configuration is wanted (default: "
                       "that of the process that answers)")  # fmt: skip
        key = {"key": "bookie.port", "value": "3181", "default": "3181", "origin": "default"}
        return [
            Route("GET", PATH, "Return the effective configuration of this process or of a bookie, "
                  "with the defaults and where each value comes from; secrets are not shown",
                  self.configuration, query=(bookie,),
                  example={"process": "10.0.0.1:3181", "file": "/etc/quire/quire.toml",
                           "keys": [key]}),
            Route("GET", f"{PREFIX}/settings", "Return the settings of the cluster, which are in "
                  "the metadata store", self.settings,
                  example={"settings": [{"name": "autorecovery", "value": "on", "default": "on",
                                         "changed": False}]}),
        ]  # fmt: skip

    async def settings(self, call: Call) -> dict[str, Any]:
        async with answering(self._connect) as client:
            return {"settings": await cluster_settings(client)}

    async def configuration(self, call: Call) -> dict[str, Any]:
        bookie = call.query.get("bookie")
        own = self._own.bookie_id if self._own is not None else ""
        if bookie is not None and bookie != own:
            return await self._of_bookie(bookie)
        if self._settings is None:
            raise NotFoundError(
                "the configuration of this process is not known: it was not started by a command "
                "of Quire",
                remedy="Ask a bookie, or a server that `quire ui` started",
            )
        return {"process": own or self._process, "version": self._version, **self._settings}

    async def _of_bookie(self, bookie: str) -> dict[str, Any]:
        check_bookie_id(bookie)
        async with answering(self._connect) as client:
            found = await client.bookies()
        address = found.find(bookie)
        if address is None:
            known = (*found.writable, *found.readonly)
            raise NotFoundError(
                f"bookie {bookie} is not registered, so its configuration cannot be asked for",
                remedy=did_you_mean(
                    bookie,
                    known,
                    "Check that it runs. On its machine, `quire config show --origin` shows its "
                    "configuration without the options of the command that starts it",
                ),
            )
        url = http_url(address)
        if url is None:
            raise UsageError(
                f"bookie {bookie} has no HTTP server, so its configuration cannot be asked for",
                remedy="Start it with --http HOST:PORT. On its machine, `quire config show "
                "--origin` shows its configuration without the options of the command that starts "
                "it",
            )
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                text = await self._fetch(url + PATH)
            answer: dict[str, Any] = taken(text, _SHAPE)
        except Exception as error:  # noqa: BLE001 - whatever happened, there is no configuration
            what, remedy = why_not(f"{url}{PATH}", error)
            raise BookieUnavailableError(
                f"the configuration of bookie {bookie} is not known: {what}", remedy=remedy
            ) from None
        return answer
