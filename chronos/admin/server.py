"""The HTTP server over a running node: guards the door, runs the routes, answers every failure as a problem.

start: last, when the node runs        stop: first; long polls end at once, other requests are finished
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from chronos.admin import metrics, openapi
from chronos.admin.context import Call, Context
from chronos.admin.page import page
from chronos.admin.problems import ProblemError, answer, from_error, invalid, plain
from chronos.admin.routes import Route, table
from chronos.admin.schemas import Fault, NoQuery
from chronos.errors import ChronosError, Stop
from chronos.node import Node

log = structlog.get_logger("chronos.http")

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body: 10,000 messages of 3 kB; more where a single message may be larger."""

BODY_S = 30.0
"""How long a body may take to arrive."""

STOP_S = 8.0
"""How long requests may take to finish when the server stops; an action waits 5 s at most."""

KEEP_S = 75.0
"""How long an idle connection is kept."""

LINE_BYTES_MAX = 65_536
"""Longest first line of a request: the longest id, percent-encoded, with a lot of room."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_encode = msgspec.json.Encoder().encode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves one node. Used from one event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._context: Context | None = None
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen where the configuration says; Stop when that cannot be."""
        context = self._context = Context(self._node)
        config = self._node.config
        app = web.Application(
            client_max_size=max(BODY_BYTES_MAX, 2 * config.topics.message_bytes_max),
            middlewares=[_guard(local_only=_is_loopback(config.admin.host))],
        )
        app.on_response_prepare.append(_seal)
        exposition = metrics.Exposition(context)
        described = _encode(openapi.document())
        html, policy = page()
        own: dict[str, Handler] = {
            "metrics": lambda _: _metrics(exposition),
            "openapi": lambda _: _static(described, "application/json", {}),
            "page": lambda _: _static(html, "text/html", {"Content-Security-Policy": policy}),
        }
        for route in table(context):
            handler = own[route.name] if route.handler is None else None
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
        """Take no more requests, end the long polls, finish the others."""
        if self._context is not None:
            self._context.stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._context is not None:
            await self._context.close()


def _guard(*, local_only: bool) -> Middleware:
    """Every request passes here first."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _answered(request, handler, local_only=local_only)

    return guarded


async def _seal(_: web.Request, response: web.StreamResponse) -> None:
    """Every answer passes here last, also one that is sent piece by piece."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"


async def _answered(request: web.Request, handler: Handler, *, local_only: bool) -> web.StreamResponse:
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
        problem = ProblemError(500, "internal", "the log of this node says more", hint="this is a bug in Chronos")
        return answer(problem.problem)


def _check_sender(request: web.Request, *, local_only: bool) -> None:
    """A web page elsewhere may make a browser send requests here: let it change nothing, and read nothing."""
    if local_only and not _names_this_machine(request.host):
        raise ProblemError(
            421, "wrong-host", f"{request.host[:200]} is not a name of this node, which listens on loopback only",
            hint="use 127.0.0.1 or localhost",
        )  # fmt: skip
    if request.method in SAFE:
        return
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc != request.host):
        raise ProblemError(403, "cross-site", f"this request comes from {origin or 'another web site'}")


class _Runner:
    """Runs one route: its query, its body, its handler, its answer."""

    def __init__(self, route: Route, own: Handler | None) -> None:
        self._route = route
        self._own = own

    async def run(self, request: web.Request) -> web.StreamResponse:
        """The handler."""
        route = self._route
        query = _query(request, route.query)
        if route.handler is None:
            assert self._own is not None
            return await self._own(request)
        body = b"" if route.body is None else await _body(request)
        answered = await route.handler(Call(request, query, body))
        if isinstance(answered, web.StreamResponse):
            return answered
        status, found = answered
        return web.Response(status=status, body=_encode(found), content_type="application/json")


def _query(request: web.Request, kind: type[Struct]) -> Struct:
    values = request.query
    if not values and kind is NoQuery:
        return NoQuery()
    given = dict(values)
    try:
        if len(given) != len(values):
            raise msgspec.ValidationError("a parameter is given more than once")
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).rpartition(" - at `$.")
        detail = (text or str(error)).replace("Object contains unknown field", "there is no parameter")
        name = path.rstrip("`")
        fault = Fault(detail=detail, field=name or msgspec.UNSET)
        raise invalid(f"{name}: {detail}" if name else detail, [fault]) from None


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
    """Whether a Host header is safe from DNS rebinding: an address, or localhost."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
