"""The dashboard's files.

They are read once, when the server is created, and served from memory. So no path in a request
reaches the file system. Each file has a tag that follows from its content, so a browser loads it
again only if another version of Quire has another file.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable

from quire.http.server.api import Call, Handler, Route, Text

PAGE = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The content security policy of the dashboard: the browser loads only files of this server, and no
text can become HTML or a script."""
_HEADERS = (
    ("Content-Security-Policy", POLICY),
    # The browser keeps the file, but asks each time whether it has changed.
    ("Cache-Control", "no-cache"),
)
_TAG_BYTES = 16


def static_routes() -> list[Route]:
    """Return the routes `/` and `/ui/NAME`, where NAME may contain a folder.

    They need no token, because the files reveal nothing about the cluster. The pages ask for the
    token themselves.
    """
    routes = []
    for name, file in _found(files("quire.http").joinpath("static")):
        kind = _TYPES.get(name.rpartition(".")[2])
        if kind is not None:
            path = "/" if name == PAGE else f"/ui/{name}"
            text = file.read_text(encoding="utf-8")
            tag = blake2b(text.encode(), digest_size=_TAG_BYTES).hexdigest()
            answer = Text(text, kind, (*_HEADERS, ("ETag", f'"{tag}"')))
            routes.append(
                Route("GET", path, "The dashboard", _serving(answer), open=True, documented=False)
            )
    return routes


def _found(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the name and the file of everything in a folder, and in the folders in it."""
    for one in sorted(folder.iterdir(), key=lambda found: found.name):
        if one.is_dir():
            yield from _found(one, f"{above}{one.name}/")
        else:
            yield above + one.name, one


def _serving(answer: Text) -> Handler:
    async def serve(call: Call) -> Text:
        return answer

    return serve
