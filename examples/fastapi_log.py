"""An HTTP service with a durable log: FastAPI in front of a stream.

    pip install fastapi uvicorn
    uvicorn fastapi_log:app

    curl --data 'hello' http://127.0.0.1:8000/events
    curl http://127.0.0.1:8000/events

POST answers once the event is on the disks of two bookies. GET reads from the beginning, or after
the position that a former answer gave. Start a second instance, and it takes over: the next POST
to the first one fails with 503, and from then on its /healthy does too. QUIRE_METADATA names the
cluster.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

import quire
from quire.errors import QuireError
from quire.streams import DLSN, EARLIEST

STREAM = "events"
PAGE = 100


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One client and one writer for the whole process, on the event loop of the server.
    async with (
        quire.connect(os.environ["QUIRE_METADATA"]) as client,
        client.namespace("/web", create=True) as streams,
        streams.open_writer(STREAM, create=True) as writer,
    ):
        app.state.streams, app.state.writer = streams, writer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events", status_code=201)
async def append(request: Request) -> dict[str, Any]:
    try:
        # Many requests may wait here at once: their events share the writes to disk.
        position = await app.state.writer.append(await request.body())
    except QuireError as error:
        if error.outcome_known and not app.state.writer.closed:  # too large, or over a quota
            raise HTTPException(422, str(error)) from error
        # The event may be in the log or not, so the caller must look before it sends it again.
        # The writer has failed for good, and `healthy` tells the load balancer.
        raise HTTPException(503, str(error)) from error
    return {"position": str(position)}


@app.get("/events")
async def read(after: str = "") -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    try:
        start = DLSN.parse(after).next_slot() if after else EARLIEST
    except ValueError as error:
        raise HTTPException(422, f"{after!r} is not a position") from error
    try:
        async for record in app.state.streams.open_reader(STREAM, start=start):
            text = record.payload.decode(errors="replace")
            events.append({"position": str(record.position), "event": text})
            if len(events) == PAGE:
                break
    except QuireError as error:
        raise HTTPException(503, str(error)) from error
    return events


@app.get("/healthy")
async def healthy() -> dict[str, bool]:
    if app.state.writer.closed:
        raise HTTPException(503, "another instance writes the log, or the cluster failed")
    return {"healthy": True}
