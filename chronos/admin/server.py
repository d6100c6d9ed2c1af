"""The HTTP server of a running node: checks the sender, runs the routes, answers every failure as a problem.

It starts last, when the node runs, and stops first: long polls end at once, other requests are finished.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from chronos.admin import metrics, openapi
from chronos.admin.context import Call, Context
from chronos.admin.page import page
from chronos.admin.problems import ProblemError, answer, from_error, plain
from chronos.admin.routes import Route, table
from chronos.admin.schemas import REPEATABLE, Fault, NoQuery
from chronos.admin.validation import invalid_faults, query_faults
from chronos.errors import ChronosError, Stop
from chronos.node import Node

log = structlog.get_logger("chronos.http")

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body: 10,000 messages of 3 kB; more where a single message may be larger."""

BODY_S = 30.0
"""How long a body may take to arrive."""

STOP_S = 8.0
"""How long requests may take to finish when the server stops; an action waits at most 5 s."""

KEEP_S = 75.0
"""How long an idle connection is kept."""

LINE_BYTES_MAX = 65_536
"""Longest first line of a request: many times the longest id, percent-encoded."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_encode = msgspec.json.Encoder().encode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves one node. For one event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._context: Context | None = None
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on the configured address; raises Stop when that is not possible."""
        context = self._context = Context(self._node)
        config = self._node.config
        app = web.Application(
            client_max_size=max(BODY_BYTES_MAX, 2 * config.topics.message_bytes_max),
            middlewares=[_guard(local_only=_is_loopback(config.admin.host))],
        )
        app.on_response_prepare.append(_add_headers)
        exposition = metrics.Exposition(context)
        description = _encode(openapi.document())
        html, policy = page()
        handlers: dict[str, Handler] = {
            "metrics": lambda _: _metrics(exposition),
            "openapi": lambda _: _static(description, "application/json", {}),
            "page": lambda _: _static(html, "text/html", {"Content-Security-Policy": policy}),
        }
        for route in table(context):
            handler = handlers[route.name] if route.handler is None else None
            app.router.add_route(route.method, route.path, _Runner(route, handler).run)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=STOP_S, keepalive_timeout=KEEP_S, max_line_size=LINE_BYTES_MAX
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, config.admin.host, config.admin.port).start()
        except OSError as error:
            await self.stop()
            raise Stop(
                f"admin: cannot listen on {config.admin.host}:{config.admin.port}: {error.strerror or error}. Is"
                " another Chronos running? Choose another with --set admin.port=0 (any free one)"
            ) from None
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log.info("listening", url=self.url)

    async def stop(self) -> None:
        """Accept no more requests, end long polls, finish other requests."""
        if self._context is not None:
            self._context.stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._context is not None:
            await self._context.close()


def _guard(*, local_only: bool) -> Middleware:
    """The middleware that every request passes first."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _handle(request, handler, local_only=local_only)

    return guard


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every answer, streamed ones included."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"


async def _handle(request: web.Request, handler: Handler, *, local_only: bool) -> web.StreamResponse:
    try:
        _check_sender(request, local_only=local_only)
        return await handler(request)
    except ProblemError as error:
        return answer(error.problem)
    except web.HTTPException as error:
        return plain(error)
    except ChronosError as error:
        if isinstance(error, Stop):
            log.error("request failed", path=request.path, why=str(error))
        return answer(from_error(error).problem)
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        problem = ProblemError(500, "internal", "see the log of this node", hint="this is a bug in Chronos")
        return answer(problem.problem)


def _check_sender(request: web.Request, *, local_only: bool) -> None:
    """Refuse requests that a browser sends for a web page of another site: they may change nothing and read nothing."""
    if local_only and not _names_this_machine(request.host):
        raise ProblemError(
            421, "wrong-host", f"{request.host[:200]} is not a name of this node, which listens only on loopback",
            hint="use 127.0.0.1 or localhost",
        )  # fmt: skip
    if request.method in SAFE:
        return
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc != request.host):
        raise ProblemError(403, "cross-site", f"this request comes from {origin or 'another web site'}")


class _Runner:
    """Runs one route."""

    def __init__(self, route: Route, handler: Handler | None) -> None:
        """`handler`: of a route that the server itself serves."""
        self._route = route
        self._handler = handler

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Check the query, read the body, call the handler and encode its answer."""
        route = self._route
        query = _query(request, route.query)
        if route.handler is None:
            assert self._handler is not None
            return await self._handler(request)
        body = b"" if route.body is None else await _body(request)
        result = await route.handler(Call(request, query, body))
        if isinstance(result, web.StreamResponse):
            return result
        status, content = result
        return web.Response(status=status, body=_encode(content), content_type="application/json")


def _query(request: web.Request, kind: type[Struct]) -> Struct:
    values = request.query
    if not values and kind is NoQuery:
        return NoQuery()
    query: dict[str, Any] = {
        name: values.getall(name) if name in REPEATABLE else value for name, value in values.items()
    }
    repeated = sorted({name for name in values if name not in REPEATABLE and len(values.getall(name)) > 1})
    if repeated:
        raise invalid_faults([Fault(detail="parameter is given more than once", field=name) for name in repeated])
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError:
        raise invalid_faults(query_faults(query, kind)) from None


async def _body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise ProblemError(
            415, "not-json", f"Content-Type is {request.headers.get('Content-Type', 'missing')[:100]}",
            hint="send -H 'Content-Type: application/json'",
        )  # fmt: skip
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise ProblemError(408, "too-slow", f"the body did not arrive within {BODY_S:g} s") from None


async def _metrics(exposition: metrics.Exposition) -> web.Response:
    return web.Response(body=await exposition.text(), headers={"Content-Type": metrics.CONTENT_TYPE})


async def _static(body: bytes, kind: str, headers: dict[str, str]) -> web.Response:
    return web.Response(body=body, content_type=kind, charset="utf-8" if kind == "text/html" else None, headers=headers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names_this_machine(host: str) -> bool:
    """True if a Host header is safe from DNS rebinding: an address, or localhost."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
