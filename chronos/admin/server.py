"""The HTTP server of a running node: checks the sender, runs the routes, answers every failure as a problem.

It starts last, when the node runs, and stops first: long polls end at once, other requests are finished.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from chronos.admin import metrics, openapi
from chronos.admin.access import ASKER_HEADER, Access
from chronos.admin.audit import REQUEST_HEADER, REQUEST_ID, Recorded, Trail
from chronos.admin.bodies import Hold, read_body
from chronos.admin.connections import SERVER, Connection, Listener, SparseLog, connections_max
from chronos.admin.context import Call, Context
from chronos.admin.page import page
from chronos.admin.problems import ProblemError, answer, from_error, plain
from chronos.admin.registration import Registrar
from chronos.admin.routes import Route, table
from chronos.admin.schemas import REPEATABLE, Fault, NoQuery
from chronos.admin.senders import Hosts, check_encoding, check_site
from chronos.admin.turns import asker
from chronos.admin.validation import invalid_faults, query_faults
from chronos.core.roles import Member
from chronos.errors import ChronosError, Stop
from chronos.node import Node
from chronos.node.opening import open_audit
from chronos.node.tls import server_tls

log = structlog.get_logger("chronos.http")

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body: 10,000 messages of 3 kB; more where a single message may be larger."""

STOP_S = 8.0
"""How long requests may take to finish when the server stops; an action waits at most 5 s."""

LINE_BYTES_MAX = 65_536
"""Longest first line of a request: many times the longest id, percent-encoded."""

_encode = msgspec.json.Encoder().encode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves one node. For one event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._context: Context | None = None
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._registrar: Registrar | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on the configured address; raises Stop when that is not possible."""
        config = self._node.config
        sparse_log = SparseLog()
        tls, access = server_tls(config), Access(config.admin.tokens, self._members, sparse_log)
        trail = Trail(
            open_audit(config, self._node.log),
            node=config.node.id,
            required=config.audit.required,
            now_ms=self._node.clock.now_ms,
        )
        context = self._context = Context(self._node, trail)
        context.tokens_problem = lambda: access.tokens_problem
        body_bytes_max = max(BODY_BYTES_MAX, 2 * config.topics.message_bytes_max)
        app = web.Application(client_max_size=body_bytes_max, middlewares=[self._guard(Hosts.of(config))])
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
            app.router.add_route(
                route.method, _any_text(route.path), _Runner(route, handler, access, context, body_bytes_max).run
            )
        self._runner = web.AppRunner(app, shutdown_timeout=STOP_S)
        await self._runner.setup()
        assert self._runner.server is not None
        listener = self._listener = Listener(
            self._runner.server, sparse_log, most=connections_max(), max_line_size=LINE_BYTES_MAX, auto_decompress=False
        )
        try:
            host, port = await listener.listen(config.admin.host, config.admin.port, tls)
        except OSError as error:
            await self.stop()
            raise Stop(
                f"admin: cannot listen on {config.admin.host}:{config.admin.port}: {error.strerror or error}. Is"
                " another Chronos running? Choose another with --set admin.port=0 (any free one)"
            ) from None
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._registrar = Registrar(context, self.url)
        context.spawn(self._registrar.run())
        log.info("listening", url=self.url)

    def _members(self) -> Mapping[str, Member]:
        membership = self._node.membership
        return {} if membership is None else membership.snapshot().members

    async def stop(self) -> None:
        """Accept no more requests, end long polls, finish other requests."""
        if self._context is not None:
            self._context.stopping.set()
        if self._registrar is not None:
            await self._registrar.leave()
        if self._listener is not None:
            await self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._context is not None:
            await self._context.close()

    def _guard(self, hosts: Hosts) -> Middleware:
        """The middleware that every request passes first."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                check_site(request, hosts.check(request))
                check_encoding(request)
                assert self._listener is not None
                with self._listener.serving(request):
                    return await handler(request)
            except ConnectionError:
                # The client is gone.
                raise
            except ProblemError as error:
                response = answer(error.problem)
                if isinstance(request.protocol, Connection) and request.protocol.is_last:
                    response.force_close()
                return response
            except web.HTTPException as error:
                return plain(error)
            except ChronosError as error:
                if isinstance(error, Stop):
                    log.error("request failed", path=request.path, why=str(error))
                return answer(from_error(error).problem)
            except Exception as error:
                if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                    # The client is gone: aiohttp ends the connection.
                    raise
                log.exception("request failed", method=request.method, path=request.path)
                problem = ProblemError(500, "internal", "see the log of this node", hint="this is a bug in Chronos")
                return answer(problem.problem)

        return guard


def _any_text(path: str) -> str:
    """The path of a route with parameters that match any text; aiohttp's own exclude braces."""
    return re.sub(r"\{(\w+)\}", r"{\1:[^/]+}", path)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer, streamed ones included."""
    if (request_id := request.get(REQUEST_ID)) is not None:
        response.headers[REQUEST_HEADER] = request_id
    response.headers["Server"] = SERVER
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"


class _Runner:
    """Runs one route."""

    def __init__(
        self, route: Route, handler: Handler | None, access: Access, context: Context, body_bytes_max: int
    ) -> None:
        """`handler`: of a route that the server itself serves."""
        self._route = route
        self._handler = handler
        self._access = access
        self._trail = context.trail
        self._bodies = context.bodies
        self._body_bytes_max = body_bytes_max

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Serve one request, and write down who sent it and what came of it."""
        recorded = self._trail.request(self._route, request)
        try:
            result = await self._serve(request, recorded)
        except BaseException as error:
            recorded.failed(error)
            raise
        if isinstance(result, web.StreamResponse):
            recorded.ended(result.status, result.body if isinstance(result, web.Response) else b"")
            return result
        status, content = result
        recorded.ended(status, content)
        return web.Response(status=status, body=_encode(content), content_type="application/json")

    async def _serve(self, request: web.Request, recorded: Recorded) -> web.StreamResponse | tuple[int, object]:
        """1. check the sender and the query, 2. read the body, 3. write the intent down, 4. call the handler."""
        route = self._route
        # 1.
        asker.set(None)
        sender = self._access.admit(request, route.role, concerns_targets=route.scope == "targets")
        asker.set(request.headers.get(ASKER_HEADER) if sender.is_member else sender.name)
        assert isinstance(request.protocol, Connection)
        request.protocol.claim(sender)
        query = _query(request, route.query)
        if route.handler is None:
            assert self._handler is not None
            return await self._handler(request)
        with Hold(self._bodies) as hold:
            # 2.
            body = b"" if route.body is None else await read_body(request, hold, self._body_bytes_max)
            # 3.
            await recorded.begin(query, body)
            # 4.
            return await route.handler(Call(request, query, body, sender, hold))


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


async def _metrics(exposition: metrics.Exposition) -> web.Response:
    return web.Response(body=await exposition.text(), headers={"Content-Type": metrics.CONTENT_TYPE})


async def _static(body: bytes, kind: str, headers: dict[str, str]) -> web.Response:
    return web.Response(body=body, content_type=kind, charset="utf-8" if kind == "text/html" else None, headers=headers)
