"""The files of the console (`chronos/admin/static`), read once when the server starts.

The files are the same for every sender and contain no data of the service: the console's scripts
call the API like any other client, with the token that the user enters if one is needed."""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import hdrs, web
from msgspec import Struct

INDEX = "index.html"
"""The document of every view."""

HERE = b'="./'
"""How an address in the document begins, which is relative to the path of the service."""

VIEWS = frozenset(
    {"messages", "timeline", "series", "dead-letters", "rejected", "targets", "cluster", "audit"}
)
"""The first segments of paths below `/ui/`."""

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types, by the ending of the file."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: everything comes from this service, nothing is inline."""


class File(Struct, frozen=True):
    """One file of the console."""

    body: bytes
    kind: str
    tag: str
    """The value of its ETag."""


class Console:
    """The files by their names below `static`, such as `lib/dom.js`."""

    def __init__(self) -> None:
        self._files = dict(_read(files("chronos.admin").joinpath("static"), ""))

    def page(self, request: web.Request, view: str = "") -> web.Response:
        """The document, in which the path of the request opens a view. The status is 404 if there
        is no such view, which the document says itself."""
        is_known = not view or view.split("/", 1)[0] in VIEWS
        depth = request.rel_url.raw_path.count("/") - 1
        return _answer(request, self._index(depth), 200 if is_known else 404)

    def file(self, request: web.Request, name: str) -> web.Response:
        """One file; status 404 if the package has none of this name."""
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound
        return _answer(request, found, 200)

    def _index(self, depth: int) -> File:
        """The document for a path with this many segments above the last. Its addresses are
        relative: a proxy may serve the console below a path, of which the service knows nothing."""
        found = self._files[INDEX]
        if depth == 0:
            return found
        body = found.body.replace(HERE, b'="' + b"../" * depth)
        return File(body, found.kind, f"{found.tag}-{depth}")


def _answer(request: web.Request, found: File, status: int) -> web.Response:
    headers = {
        hdrs.CONTENT_TYPE: found.kind,
        hdrs.CACHE_CONTROL: "no-cache",
        hdrs.ETAG: f'"{found.tag}"',
        "Content-Security-Policy": POLICY,
    }
    if status == 200 and any(known.value == found.tag for known in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(status=status, body=found.body, headers=headers)


def _read(folder: Traversable, above: str) -> Iterator[tuple[str, File]]:
    for entry in folder.iterdir():
        name = above + entry.name
        if entry.is_dir():
            yield from _read(entry, f"{name}/")
            continue
        kind = KINDS.get("." + entry.name.rpartition(".")[2])
        if kind is None:
            continue
        body = entry.read_bytes()
        yield name, File(body, kind, hashlib.sha256(body).hexdigest()[:32])
