"""The HTTP server of a running node: finds the sender, runs the handler of the route, removes from
the answer what the sender may not see, and has the audit trail written.

Payloads and headers are shown only to senders with the role `payload`, and targets only to senders
whose own they are; the reason why a shard is paused may name one. The server starts last, when the
node runs, and stops first: long polls end at once, other requests have STOP_S to finish."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import UNSET, Struct
from msgspec.structs import replace

from chronos.admin.cluster import metrics
from chronos.admin.cluster.registry import Registrar
from chronos.admin.http import openapi, schemas
from chronos.admin.http.access import (
    ASKER_HEADER,
    Access,
    Hosts,
    check_encoding,
    check_site,
    forbidden,
    lack,
)
from chronos.admin.http.audit import CHANGES, REQUEST_HEADER, REQUEST_ID, Recorded, Trail
from chronos.admin.http.connections import (
    BodyShare,
    Listener,
    ServerConnection,
    SparseLog,
    connections_max,
    read_body,
)
from chronos.admin.http.console import Console
from chronos.admin.http.context import Call, Context, without_names
from chronos.admin.http.issuer import Issuer
from chronos.admin.http.problems import (
    ProblemError,
    answer,
    from_error,
    invalid_faults,
    plain,
    query_faults,
)
from chronos.admin.http.routes import Route, table
from chronos.admin.http.schemas import REPEATABLE, AnyQuery, Fault, NoQuery
from chronos.admin.http.tokens import ROLES, Sender
from chronos.admin.http.waiting import asker
from chronos.core.cluster.roles import Member
from chronos.core.reach import Reach
from chronos.errors import ChronosError, Stop
from chronos.node import Node
from chronos.node.opening import open_audit

TARGET_LABEL = re.compile(rb'\{(?:target|topic)="([^"]*)"')
"""The first label of the samples of one target."""

log = structlog.get_logger("chronos.http")

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body: 10,000 messages of 3 kB; more where a single message may be larger."""

STOP_S = 8.0
"""How long requests may take to finish when the server stops; an action waits at most 5 s."""

LINE_BYTES_MAX = 65_536
"""Longest first line of a request: many times the longest id, percent-encoded."""

HSTS_S = 365 * 24 * 3600
"""How long a browser that has reached this node over TLS refuses to reach it without."""

_encode = msgspec.json.Encoder().encode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OwnHandler = Callable[[web.Request, Sender], Awaitable[web.StreamResponse]]
"""A handler of a route that the server itself serves."""


def shown(answer: object, sender: Sender) -> object:
    """The answer as its sender may see it; the same object."""
    if not sender.sees_payloads:
        _each(answer, _without_payload)
        _leave_out_conditions(answer)
    if sender.is_limited and isinstance(answer, schemas.Shards):
        for shard in answer.shards:
            _leave_own_cases(shard, sender.reach)
            if shard.waits_for is not None:
                shard.waits_for = without_names(shard.waits_for)
    return answer


def identity(sender: Sender, listed: Sequence[Route], *, has_tokens: bool) -> schemas.WhoAmI:
    """Return the sender's roles and limits, and the routes with changes that it may use."""
    limits = sender.limits
    return schemas.WhoAmI(
        tokens=has_tokens,
        token=sender.name,
        roles=[role for role in ROLES if role in sender.roles],
        targets=list(sender.targets),
        ids=list(sender.ids),
        limits=None
        if limits is None
        else schemas.TokenLimits(
            polls=limits.polls, connections=limits.connections, jobs=limits.jobs
        ),
        actions=[
            route.name
            for route in listed
            if route.role in CHANGES
            and lack(sender, route.role, concerns_targets=route.scope == "targets") is None
        ],
    )


def own_samples(exposition: bytes, reach: Reach) -> bytes:
    """The metrics without the samples of targets that are not the sender's own."""
    if not reach.is_limited:
        return exposition
    kept = (
        line
        for line in exposition.splitlines(keepends=True)
        if (found := TARGET_LABEL.search(line)) is None or reach.admits_target(found[1].decode())
    )
    return b"".join(kept)


def _each(answer: object, hide: Callable[[Any], None]) -> None:
    """Call it with each value that may hold a payload."""
    match answer:
        case schemas.Page():
            for message in answer.messages:
                hide(message)
        case schemas.Records():
            for record in answer.records:
                hide(record)
        case schemas.MessageInfo() | schemas.DeadLetter() | schemas.RejectedRecord():
            hide(answer)


def _leave_out_conditions(answer: object) -> None:
    """Leave out texts that were looked for in headers: they may be what the headers hold."""
    match answer:
        case schemas.JobInfo():
            jobs = [answer]
        case schemas.Jobs():
            jobs = answer.jobs
        case schemas.AuditPage():
            answer.entries = [replace(entry, query="", asked="") for entry in answer.entries]
            return
        case _:
            return
    for job in jobs:
        job.filter = replace(job.filter, headers=UNSET, contains=UNSET)


def _without_payload(
    holder: schemas.MessageInfo | schemas.DeadLetter | schemas.RejectedRecord | schemas.LogRecord,
) -> None:
    holder.value = holder.value_base64 = UNSET
    if isinstance(holder, schemas.LogRecord | schemas.RejectedRecord):
        holder.headers = UNSET
    elif holder.target is not None:
        holder.target.headers = UNSET


def _leave_own_cases(shard: schemas.Shard, reach: Reach) -> None:
    """Leave only its own targets among the messages that died, and among records without a unit."""
    if shard.unitless is not None:
        shard.unitless = {
            name: count for name, count in shard.unitless.items() if reach.admits_target(name)
        } or None
    dead = shard.dead_recently
    if dead is None:
        return
    dead.cases = [case for case in dead.cases if reach.admits_target(case.target)]
    dead.messages = sum(case.messages for case in dead.cases)
    dead.text = (
        f"{dead.messages:,} messages for targets of this token were dead-lettered in the last 10 "
        "min"
    )
    if not dead.cases:
        shard.dead_recently = None


class Server:
    """Serves one node. For one event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._context: Context | None = None
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._registrar: Registrar | None = None
        self._issuing: asyncio.Task[None] | None = None
        self._access: Access | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on the configured address; raises Stop when that is not possible."""
        config = self._node.config
        sparse_log = SparseLog()
        issuer = None if config.admin.jwt.issuer is None else Issuer(config.admin.jwt)
        access = self._access = Access(
            config.admin.tokens,
            self._members,
            sparse_log,
            with_certificates=config.admin.tls.client_ca is not None,
            issuer=issuer,
        )
        trail = Trail(
            open_audit(config),
            node=config.node.id,
            required=config.audit.required,
            now_ms=self._node.clock.now_ms,
        )
        context = self._context = Context(self._node, trail, access.tokens)
        body_bytes_max = max(BODY_BYTES_MAX, 2 * config.topics.message_bytes_max)
        app = web.Application(
            client_max_size=body_bytes_max,
            middlewares=[guard(self._serving, Hosts.of(config), sparse_log)],
        )
        app.on_response_prepare.append(
            add_headers if config.admin.tls.certificate is None else _add_headers_of_tls
        )
        exposition = metrics.Exposition(context, issuer)
        description = openapi.encoded()
        console = Console()

        async def samples(_: web.Request, sender: Sender) -> web.Response:
            return await _metrics(exposition, sender)

        async def described(_request: web.Request, _sender: Sender) -> web.Response:
            return web.Response(body=description, content_type="application/json")

        async def page(request: web.Request, _: Sender) -> web.Response:
            return console.page(request, request.match_info.get("view", ""))

        async def file(request: web.Request, _: Sender) -> web.Response:
            return console.file(request, request.match_info["file"])

        listed = table(context)

        async def whoami(_: web.Request, sender: Sender) -> web.Response:
            found = identity(sender, listed, has_tokens=access.tokens is not None)
            return web.Response(body=_encode(found), content_type="application/json")

        handlers: dict[str, OwnHandler] = {
            "metrics": samples,
            "whoami": whoami,
            "openapi": described,
            "page": page,
            "view": page,
            "file": file,
        }
        for route in listed:
            handler = handlers[route.name] if route.handler is None else None
            app.router.add_route(
                route.method,
                _any_text(route),
                _Runner(route, handler, access, context, body_bytes_max).run,
            )
        self._runner = web.AppRunner(app, shutdown_timeout=STOP_S)
        await self._runner.setup()
        assert self._runner.server is not None
        listener = self._listener = Listener(
            self._runner.server,
            sparse_log,
            context.bodies,
            most=connections_max(),
            max_line_size=LINE_BYTES_MAX,
            auto_decompress=False,
        )
        try:
            host, port = await listener.listen(
                config.admin.host, config.admin.port, self._node.tls.server
            )
        except OSError as error:
            await self.stop()
            raise Stop(
                f"admin: cannot listen on {config.admin.host}:{config.admin.port}: "
                f"{error.strerror or error}. Is another Chronos running? Choose another with "
                "--set admin.port=0 (any free one)"
            ) from None
        scheme = "http" if config.admin.tls.certificate is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._registrar = Registrar(context, self.url)
        context.spawn(self._registrar.run())
        if issuer is not None:
            self._issuing = asyncio.create_task(issuer.run())
        log.info("listening", url=self.url)

    def _members(self) -> Mapping[str, Member]:
        membership = self._node.membership
        return {} if membership is None else membership.snapshot().members

    async def stop(self) -> None:
        """Accept no more requests, end long polls, finish other requests."""
        if self._context is not None:
            self._context.stopping.set()
            self._context.bodies.stop()
        if self._issuing is not None:
            self._issuing.cancel()
            await asyncio.gather(self._issuing, return_exceptions=True)
        if self._registrar is not None:
            await self._registrar.leave()
        if self._listener is not None:
            await self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._context is not None:
            await self._context.close()
        if self.url:
            log.info("no longer listening", url=self.url)

    def _serving(self, request: web.Request) -> AbstractContextManager[None]:
        assert self._listener is not None
        return self._listener.serving(request)


def guard(
    serving: Callable[[web.Request], AbstractContextManager[None]],
    hosts: Hosts,
    sparse_log: SparseLog,
) -> Middleware:
    """The middleware that every request passes first. `serving`: that of the listener."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with serving(request):
                check_site(request, hosts.check(request))
                check_encoding(request)
                return await handler(request)
        except ConnectionError:
            # The client is gone.
            raise
        except ProblemError as error:
            response = answer(error.problem)
            if isinstance(request.protocol, ServerConnection) and request.protocol.is_last:
                response.force_close()
            return response
        except web.HTTPException as error:
            return plain(error)
        except ChronosError as error:
            if isinstance(error, Stop):
                sparse_log.fault(
                    "request failed", error, method=request.method, path=request.path[:200]
                )
            return answer(from_error(error).problem)
        except Exception as error:
            if isinstance(error, ConnectionError) and (
                request.transport is None or request.transport.is_closing()
            ):
                # The client is gone: aiohttp ends the connection.
                raise
            sparse_log.fault(
                "request failed", error, method=request.method, path=request.path[:200]
            )
            problem = ProblemError(
                500, "internal", "see the log of this node", hint="this is a bug in Chronos"
            )
            return answer(problem.problem)

    return guarded


def _any_text(route: Route) -> str:
    """The path of a route with parameters that match any text; aiohttp's own exclude braces."""
    return re.sub(r"\{(\w+)\}", r"{\1:(?s:.+)}" if route.is_tree else r"{\1:[^/]+}", route.path)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer, streamed ones included."""
    # The name of the library and its version help an attacker only.
    response.headers.popall("Server", None)
    if (request_id := request.get(REQUEST_ID)) is not None:
        response.headers[REQUEST_HEADER] = request_id
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Referrer-Policy"] = "no-referrer"


async def _add_headers_of_tls(request: web.Request, response: web.StreamResponse) -> None:
    await add_headers(request, response)
    response.headers["Strict-Transport-Security"] = f"max-age={HSTS_S}"


class _Runner:
    """Runs one route."""

    def __init__(
        self,
        route: Route,
        handler: OwnHandler | None,
        access: Access,
        context: Context,
        body_bytes_max: int,
    ) -> None:
        """`handler`: of a route that the server itself serves."""
        self._route = route
        self._handler = handler
        self._access = access
        self._trail = context.trail
        self._bodies = context.bodies
        self._body_bytes_max = body_bytes_max

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Serve one request, and record its sender and its outcome in the audit trail."""
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

    async def _serve(
        self, request: web.Request, recorded: Recorded
    ) -> web.StreamResponse | tuple[int, object]:
        """1. check the sender and the query, 2. read the body, 3. write the intent down, 4. call
        the handler."""
        route = self._route
        # 1.
        asker.set(None)
        sender = self._access.admit(request, route.role, concerns_targets=route.scope == "targets")
        asker.set(request.headers.get(ASKER_HEADER) if sender.is_member else sender.name)
        assert isinstance(request.protocol, ServerConnection)
        request.protocol.claim(sender)
        query = _query(request, route.query)
        if sender.name is not None and getattr(query, "shards", UNSET) is not UNSET:
            raise forbidden(
                sender,
                "may not give `shards`",
                hint="only nodes of the cluster give it, to each other",
            )
        if route.handler is None:
            assert self._handler is not None
            return await self._handler(request, sender)
        with BodyShare(self._bodies) as share:
            # 2.
            body = (
                b"" if route.body is None else await read_body(request, share, self._body_bytes_max)
            )
            # 3.
            await recorded.begin(query, body)
            # 4.
            result = await route.handler(Call(request, query, body, sender, share))
        if isinstance(result, web.StreamResponse):
            return result
        status, content = result
        return status, shown(content, sender)


def _query(request: web.Request, kind: type[Struct]) -> Struct:
    values = request.query
    if kind is AnyQuery or (not values and kind is NoQuery):
        return kind()
    query: dict[str, Any] = {
        name: values.getall(name) if name in REPEATABLE else value for name, value in values.items()
    }
    repeated = sorted(
        {name for name in values if name not in REPEATABLE and len(values.getall(name)) > 1}
    )
    if repeated:
        raise invalid_faults(
            [Fault(detail="parameter is given more than once", field=name) for name in repeated]
        )
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError:
        raise invalid_faults(query_faults(query, kind)) from None


async def _metrics(exposition: metrics.Exposition, sender: Sender) -> web.Response:
    text = own_samples(await exposition.text(), sender.reach)
    return web.Response(body=text, headers={"Content-Type": metrics.CONTENT_TYPE})
