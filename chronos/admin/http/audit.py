"""The audit trail of the HTTP interface: an entry for each request that changes something or shows
payloads, with its sender and its outcome. Entries are lines of the file `audit.path`; without that
they are log lines, and only requests with a token have one.

The server makes the entries, whichever handler or node answers the request; requests that are
refused have one too. There is none for a request that is refused before its sender is known, as
without a valid token; for one beyond the limits of its sender; for a poll that ends without a
record; and for one from another node, which has written the entry of a request that it forwards.
Health checks and deliveries do not wait for the trail. Entries are read in
`admin/cluster/audit.py`.

With `audit.required`: 1. the intent is durable, 2. the handler runs, 3. the answer is sent, and the
outcome is written. While entries cannot be written, outcomes are kept and tried again, and new
requests are refused. The outcome of a request without an intent is lost if WAITING_MAX entries
wait; `Trail.lost` counts these. Entries that still wait when the node has stopped are lost too, and
only their number is logged."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from chronos.admin.http.problems import ProblemError, from_error
from chronos.admin.http.schemas import AuditEntry
from chronos.admin.http.tokens import Role, Sender
from chronos.core.timefmt import format_time
from chronos.errors import ChronosError
from chronos.ports import AuditSink

log = structlog.get_logger("chronos.audit")

CHANGES: tuple[Role, ...] = ("write", "operate")
"""Roles of the requests that change something."""

PAYLOADS = ("dead_letter", "dead-letter-at", "rejected-record", "records")
"""Names of the routes whose answers have payloads."""

READS = ("audit", "archive-audits", "archive-audit")
"""Names of the routes of the console's view Audit: they change nothing, so they make no entries of
their own."""

SENDER = web.RequestKey("sender", Sender)
"""The key of a request's sender, once it is known."""

REQUEST_ID = web.RequestKey("request_id", str)
"""The key of the id of a request that is in the trail."""

REQUEST_HEADER = "Chronos-Request"
"""The answer's header with the id of the request, as the trail has it."""

IDS_MAX = 200
"""Ids in one entry; a request with more has several entries."""

IDS_LOGGED = 5
"""Ids in a log line."""

ASKED_CHARACTERS = 1_000
"""Characters of the body of a request without payloads that an entry keeps."""

GROUP = 1_000
"""Entries in one write."""

WAITING_MAX = 10_000
"""Entries that wait to be written; further ones are lost, unless they are outcomes of intents."""

INTENT_S = 5.0
"""How long a request waits until its intent is durable."""

AGAIN_S = 1.0
"""Pause after a write that failed."""

CLOSE_S = 2.0
"""How long entries may take to be written when the server stops."""

_encode = msgspec.json.Encoder().encode


class _Named(Struct):
    """An element of a body, or of an answer, as far as the trail needs it."""

    id: Any = None
    positions: Any = None
    result: Any = None
    state: Any = None
    type: Any = None


_decoder: msgspec.json.Decoder[_Named | list[_Named]] = msgspec.json.Decoder(_Named | list[_Named])


class Trail:
    """Writes entries, many at a time. For one event loop."""

    def __init__(
        self, sink: AuditSink | None, *, node: str, required: bool, now_ms: Callable[[], int]
    ) -> None:
        """`sink`: None if entries are log lines. `required`: the setting `audit.required`."""
        self.node = node
        self.required = required and sink is not None
        self.now_ms = now_ms
        self.problem: str | None = None
        """Why the last write failed; None: it did not."""
        self.lost = 0
        """Entries that could not be written, and are not tried again."""
        self._sink = sink
        self._threads = ThreadPoolExecutor(1, "audit")
        self._waiting: deque[tuple[bytes, asyncio.Future[None] | None]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._since_s: float | None = None
        """When the write began that runs now."""

    @property
    def is_log(self) -> bool:
        """True if entries are log lines."""
        return self._sink is None

    def request(self, route: Any, request: web.Request) -> "Recorded":
        """The entries of a request that has just arrived."""
        return Recorded(self, route, request)

    async def intend(self, entries: Sequence[bytes]) -> None:
        """Return once the entries are durable. Raises ProblemError with status 503."""
        loop = asyncio.get_running_loop()
        is_stuck = self._since_s is not None and loop.time() - self._since_s > INTENT_S
        if is_stuck or (self.problem is not None and self._writing is not None):
            raise self._refused(self.problem)
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in entries]
        self._waiting.extend(zip(entries, futures, strict=True))
        self._start()
        try:
            async with asyncio.timeout(INTENT_S):
                await asyncio.gather(*futures)
        except TimeoutError:
            raise self._refused(None) from None
        except ChronosError as error:
            raise self._refused(str(error)) from None
        finally:
            for future in futures:
                future.cancel()

    def tell(self, entries: Sequence[bytes], *, keep: bool) -> None:
        """Write entries soon. `keep`: never drop them; their number is bounded by the requests in
        flight."""
        for entry in entries:
            if keep or len(self._waiting) < WAITING_MAX:
                self._waiting.append((entry, None))
            else:
                self.lost += 1
        self._start()

    def _refused(self, why: str | None) -> ProblemError:
        return ProblemError(
            503,
            "not-audited",
            f"the audit trail cannot be written{f': {why}' if why else ''}; nothing was done",
            hint="`audit.required` refuses requests that cannot be written down; deliveries go on",
        )

    def _start(self) -> None:
        if self._writing is None and self._waiting:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._sink is not None
        try:
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]
                group = [each for each in taken if each[1] is None or not each[1].done()]
                self._since_s = loop.time()
                try:
                    await loop.run_in_executor(
                        self._threads, self._sink.write, [entry for entry, _ in group]
                    )
                except Exception as error:
                    self._failed(group, error)
                    await asyncio.sleep(AGAIN_S)
                    continue
                finally:
                    self._since_s = None
                if self.problem is not None:
                    log.warning("audit entries are written again", lost=self.lost)
                self.problem = None
                for _, future in group:
                    if future is not None and not future.done():
                        future.set_result(None)
        finally:
            self._writing = None

    def _failed(
        self, group: list[tuple[bytes, asyncio.Future[None] | None]], error: Exception
    ) -> None:
        """Keep the outcomes of a group, and fail the intents, whose requests have not begun."""
        if self.problem is None:
            log.error(
                "audit entries cannot be written", why=str(error), requests_refused=self.required
            )
        self.problem = str(error) or repr(error)
        waiting = [*group, *self._waiting]
        self._waiting = deque(each for each in waiting if each[1] is None)
        for _, future in waiting:
            if future is not None and not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """Write the waiting entries, as far as that succeeds in time."""
        if (writing := self._writing) is not None:
            await asyncio.wait([writing], timeout=CLOSE_S)
            writing.cancel()
        if self._waiting:
            log.error("audit entries lost at the stop of the node", entries=len(self._waiting))
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._sink is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._sink.close)


class Recorded:
    """The entries of one request."""

    def __init__(self, trail: Trail, route: Any, request: web.Request) -> None:
        """`route`: its role, its name and its body count."""
        self._trail = trail
        self._route = route
        self._request = request
        self._shows_payload = route.name in PAYLOADS
        self._has_intent = False
        self._is_refused = False
        self._id = ""
        self._ids: list[str] = list(request.match_info.values())
        self._asked = ""

    async def begin(self, query: Struct, body: bytes) -> None:
        """Record the intent, before the handler runs. Raises ProblemError with status 503 if its
        intent must be durable and is not."""
        self._shows_payload = self._shows_payload or bool(getattr(query, "payload", False))
        if not self._is_kept():
            return
        if body and not self._ids:
            self._ids = _ids_in(body)
        if self._route.name != "schedule":
            self._asked = body[:ASKED_CHARACTERS].decode(errors="replace")
        if not self._trail.required:
            return
        try:
            await self._trail.intend([_encode(entry) for entry in self._entries("intent")])
        except ProblemError:
            self._is_refused = True
            raise
        self._has_intent = True

    def ended(self, status: int, content: object) -> None:
        """Record the outcome after the handler has answered. `content`: its answer, as values or as
        JSON."""
        if not self._has_intent and getattr(content, "records", None) == []:
            # A poll that ends without a record has shown nothing.
            return
        found: Any = _named(content) if isinstance(content, bytes) else content
        if isinstance(found, list) or not self._ids or self._shows_payload:
            # What was asked for by its position is found by its id too.
            answered = [
                str(each.id)
                for each in (found if isinstance(found, list) else [found])
                if getattr(each, "id", None)
            ]
            self._ids = answered or self._ids
        kind = getattr(found, "type", None) if status >= 400 else None
        outcome = kind or getattr(found, "result", None) or getattr(found, "state", None)
        self._tell(status, str(outcome or "done").rpartition(":")[2])

    def failed(self, error: BaseException) -> None:
        """Record the outcome of a request that ends with an error, which the server answers."""
        if isinstance(error, ProblemError):
            self._tell(error.status, error.problem.type.rpartition(":")[2])
        elif isinstance(error, web.HTTPException):
            self._tell(error.status, error.reason)
        elif isinstance(error, ChronosError):
            problem = from_error(error).problem
            self._tell(problem.status, problem.type.rpartition(":")[2])
        elif isinstance(error, ConnectionError | asyncio.CancelledError):
            # The client is gone, or the node stops: whether the request took effect shows in its
            # messages.
            self._tell(499, "interrupted")
        else:
            self._tell(500, "internal")

    def _is_kept(self) -> bool:
        sender: Sender | None = self._request.get(SENDER)
        if sender is None or sender.is_member or (sender.name is None and self._trail.is_log):
            return False
        if not is_recorded(self._route) and not self._shows_payload:
            return False
        if not self._id:
            self._id = self._request[REQUEST_ID] = secrets.token_hex(8)
        return True

    def _tell(self, status: int, outcome: str) -> None:
        if self._is_refused or not self._is_kept() or (status == 429 and not self._has_intent):
            # A client that is beyond its limits asks again and again.
            return
        entries = self._entries("outcome", status, outcome)
        if not self._trail.is_log:
            self._trail.tell([_encode(entry) for entry in entries], keep=self._has_intent)
            return
        told = {
            name: value
            for name, value in msgspec.to_builtins(entries[0]).items()
            if name not in ("time", "phase", "node")
        }
        told["ids"] = told["ids"][:IDS_LOGGED]
        if len(self._ids) > IDS_LOGGED:
            told["more_ids"] = len(self._ids) - IDS_LOGGED
        log.info("request" if status < 400 else "request refused", **told)

    def _entries(
        self, phase: Literal["intent", "outcome"], status: int = 0, outcome: str = ""
    ) -> list[AuditEntry]:
        sender: Sender = self._request[SENDER]
        entry = AuditEntry(
            time=format_time(self._trail.now_ms()),
            request=self._id,
            phase=phase,
            node=self._trail.node,
            client=self._request.remote,
            token=sender.name,
            role=self._route.role,
            verb=self._route.name,
            ids=[_text(each) for each in self._ids[:IDS_MAX]],
            query=_text(self._request.query_string[:ASKED_CHARACTERS]),
            asked=self._asked,
            status=status,
            outcome=outcome,
        )
        further = range(IDS_MAX, len(self._ids), IDS_MAX)
        parts = [[_text(each) for each in self._ids[at : at + IDS_MAX]] for at in further]
        return [entry, *(replace(entry, ids=part) for part in parts)]


def is_recorded(route: Any) -> bool:
    """Return whether every request to a route has an entry."""
    return (route.role in CHANGES and route.name not in READS) or route.name in PAYLOADS


def _text(text: str) -> str:
    """The text without half surrogate pairs, which JSON cannot have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _named(data: bytes) -> _Named | list[_Named]:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Named()


def _ids_in(body: bytes) -> list[str]:
    """The ids, or positions of dead letters, that a body names; nothing of one that is not valid,
    which is refused."""
    found = _named(body)
    names: list[str] = []
    for each in found if isinstance(found, list) else [found]:
        given = [each.id, *(each.positions if isinstance(each.positions, list) else [])]
        names += [name for name in given if isinstance(name, str)]
    return names
