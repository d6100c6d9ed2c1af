"""Checks where a request comes from, before anything else is read of it.

A browser sends requests for any web page that a person opens. Two checks keep such pages away from the service: the name in
the Host header must be one of the node (DNS rebinding), and a request must not be marked as one of another site.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from chronos.admin.problems import ProblemError
from chronos.config import Config

PAGE = "/"
"""The only path that a link on another site may lead to."""

HOST = re.compile(r"(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
"""A Host header: a name or an address, and a port."""


class Hosts:
    """The host names under which a node is served. Addresses always are: DNS rebinding needs a name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_plain(name) for name in names)

    @classmethod
    def of(cls, config: Config) -> "Hosts":
        """The names of a node: its id, the name of its machine, those in `admin`."""
        admin = config.admin
        advertised = None if admin.advertised is None else urlsplit(admin.advertised).hostname
        return cls(
            name
            for name in (config.node.id, socket.gethostname(), admin.host, advertised, *admin.allowed_hosts)
            if name
        )

    def serves(self, name: str) -> bool:
        """Return whether the name, without a port, is an address, that of this machine, or one of the node."""
        name = _plain(name)
        return name == "localhost" or name.endswith(".localhost") or name in self._names or _is_address(name)

    def check(self, request: web.Request) -> str | None:
        """Return the Host header; None for a client of HTTP/1.0 that sent none. ProblemError if it names another host."""
        given = request.headers.getall(hdrs.HOST, [])
        if not given and request.version < (1, 1):
            return None
        parts = HOST.fullmatch(given[0]) if len(given) == 1 else None
        if parts is None:
            raise ProblemError(400, "bad-request", "the Host header is missing, or is not one host name with a port")
        if not self.serves(parts[1]):
            raise ProblemError(
                421, "wrong-host", f"{given[0][:200]} is not a name of this node",
                hint="use an address, localhost or the node's own name, or add the name to admin.allowed_hosts",
            )  # fmt: skip
        return given[0]


def check_site(request: web.Request, host: str | None) -> None:
    """Refuse a request that a browser sends for a page of another site: it may change, start and read nothing.

    Only a link to the page of the service is followed. A browser sends `Sec-Fetch-Site` to addresses it trusts, which are
    HTTPS and loopback; elsewhere `Origin` protects everything except reads, whose answers the other site cannot see.
    """
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get(hdrs.ORIGIN)
    is_link = request.method in (hdrs.METH_GET, hdrs.METH_HEAD) and request.path == PAGE
    if (site not in ("same-origin", "none") and not is_link) or (origin is not None and _netloc(origin) != host):
        raise ProblemError(403, "cross-site", f"this request comes from {(origin or 'another web site')[:200]}")


def check_encoding(request: web.Request) -> None:
    """Refuse a body that must be decompressed: a small one may take any amount of memory."""
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
    if coding.strip().lower() != "identity":
        raise ProblemError(
            415, "encoded", f"Content-Encoding is {coding[:100]}, and bodies are not decompressed",
            hint="send the body as it is",
        )  # fmt: skip


@lru_cache(1_000)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()
