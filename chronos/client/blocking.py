"""The blocking client, on the standard library: one connection to each node, for one thread.

An idle connection is used again for KEEP_S. A request that may have been sent is repeated only if
the service may receive it twice."""

import http.client
import io
import selectors
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from chronos.client import dead_letters, requests
from chronos.client.connection import (
    RETRIES,
    TIMEOUT_S,
    authorization,
    context_of_variables,
    speaks_tls,
    unreachable,
)
from chronos.client.dead_letters import DeadLetterFilter, DeadLetterPage, Position, Progress
from chronos.client.models import (
    ClientError,
    DeadLetter,
    DeadLetterTotals,
    Job,
    ListedState,
    MessageInfo,
    OnConflict,
    Page,
    Result,
    Scheduled,
    Unreachable,
    WholeDeadLetter,
)
from chronos.client.requests import (
    Bytes,
    Delay,
    FilterOptions,
    HttpRequest,
    MessageOptions,
    Steps,
    Time,
    message,
    read_answer,
)
from chronos.client.servers import REGISTRY_S, Attempts, Servers, check_open

T = TypeVar("T")

KEEP_S = 30.0
"""How long an idle connection is used again: less than the service keeps it."""


class Client:
    """A client of the service with one connection to each node. It belongs to one thread; create
    one client for each thread.

    `server` is the address, by default `$CHRONOS_SERVER` or `http://127.0.0.1:7700`. With a list of
    addresses, or several in one text with commas between, the client asks any of these nodes for
    the others, sends what concerns an id to the master of its shard, and goes on with the other
    nodes when some fail. Every call has one deadline, `timeout_s`, which covers its retries. Only
    calls that are safe to repeat are repeated: reads; schedules with an id, cancels, reschedules,
    pauses and resumes, each of which has a name, so that it is executed once; and those that set a
    rate, stop a job, or replay or discard dead letters. `token` is sent to a service that needs
    one, by default `$CHRONOS_TOKEN`. `tls` is for an `https://` address; without it `$CHRONOS_CERT`
    and `$CHRONOS_CERT_KEY` are the certificate to show, and `$CHRONOS_CA` names the authorities to
    trust, by default those of the system."""

    def __init__(
        self,
        server: str | Sequence[str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._servers = Servers(server)
        self._authorization = authorization(token)
        self._tls = tls or context_of_variables()
        self._timeout_s = timeout_s
        self._retries = retries
        self._connections: dict[str, _Connection] = {}
        self._closed = False

    @property
    def server(self) -> str:
        """The address of the node that requests go to, unless they concern an id."""
        return self._servers.home

    def schedule(
        self,
        topic: str,
        value: Bytes = None,
        *,
        wait: Delay | bool | None = None,
        **options: Unpack[MessageOptions],
    ) -> Scheduled:
        """Schedule `value` for delivery to `topic` at a time or after a delay; returns once the log
        has acknowledged it.

        The options are those of `message`: `deliver_at` or `delay`, and `id`, `key`, `headers`,
        `on_conflict`, `expire_at`, `attempts`; for a series `repeat`, `repeat_times`,
        `repeat_until`, `time_zone`, `late_policy`; and `spread`.

        The shard checks later whether the id is taken: until then the `result` is `accepted`. With
        `wait` (True: 5 s) the call returns once the shard has applied the message, with the result
        `scheduled`, or `ignored` if the id is taken and `on_conflict` says so; with the policy
        `upsert`, `created`, `unchanged` or `changed`; or after this time with `accepted`. It raises
        Rejected if the id is taken otherwise."""
        scheduled: Scheduled = self.call(requests.schedule(message(topic, value, **options)))
        if wait is None or wait is False:
            return scheduled
        return self.confirm(scheduled, wait, options.get("on_conflict"))

    def confirm(
        self,
        scheduled: Scheduled,
        wait: Delay | Literal[True] = requests.CONFIRM_WAIT,
        on_conflict: OnConflict | None = None,
    ) -> Scheduled:
        """Wait at most `wait` until the shard has applied a message that was scheduled before;
        return it with its `result`.

        Raises Rejected if the shard rejected it. `on_conflict` is the policy the message was
        scheduled with."""
        return self.run(requests.confirm(scheduled, wait, on_conflict))

    def schedule_many(
        self, messages: Sequence[Mapping[str, Any]], *, wait: Delay | bool | None = None
    ) -> list[Scheduled]:
        """Schedule up to 10,000 messages made by `message`. If one is not valid, none is written.
        After ServiceFailed or Unreachable some may have been written: give each an id, and repeat
        the call.

        With `wait`, at most 5 s (True: 5 s), the result of each says what became of it, as in
        `schedule`; a message that the shard rejected has the result `conflict` or `rejected` and a
        `detail`, and nothing is raised."""
        scheduled: list[Scheduled] = self.call(requests.schedule(messages, wait))
        return scheduled

    def get(
        self, id: str | bytes, *, payload: bool = False, rejections: bool = False
    ) -> MessageInfo:
        """Return the state, times and target of a message, and why it was not delivered; with its
        payload if that is asked for and still kept. `rejections`: look for a later record with
        this id that was rejected, too. Raises NotFound."""
        found: MessageInfo = self.call(requests.get(id, payload=payload, rejections=rejections))
        return found

    def cancel(self, id: str | bytes) -> Result:
        """Cancel a message. The result is true if it will not be delivered."""
        result: Result = self.call(requests.cancel(id))
        return result

    def reschedule(
        self, id: str | bytes, *, deliver_at: Time | None = None, delay: Delay | None = None
    ) -> Result:
        """Give a pending message a new time."""
        result: Result = self.call(requests.reschedule(id, deliver_at, delay))
        return result

    def fire(self, id: str | bytes) -> Result:
        """Deliver a pending message now."""
        result: Result = self.call(requests.fire(id))
        return result

    def pause(self, id: str | bytes, *, until: Time | None = None) -> Result:
        """Leave out the occurrences of a series until a time, or until `resume`.

        Without `until` it goes on after the service's `limits.max_delay` at the latest. The result
        has the time in `due_at`."""
        result: Result = self.call(requests.pause(id, until))
        return result

    def resume(self, id: str | bytes) -> Result:
        """Let a paused series go on with the next time of its rhythm, which is in `due_at`."""
        result: Result = self.call(requests.resume(id))
        return result

    def pending(self, **conditions: Unpack[FilterOptions]) -> Iterator[MessageInfo]:
        """Iterate over pending messages in the order of their due times, page by page; conditions
        as of `conditions`.

        The first page waits up to 3 s until the shards have applied the log, and so has what was
        scheduled before the call. A message that is delivered, cancelled or moved meanwhile may be
        left out, or be there at its old time."""
        after: str | None = None
        while True:
            found: Page = self.call(requests.page(after=after, **conditions))
            yield from found.messages
            after = found.after
            if after is None:
                return

    def settled(
        self, state: ListedState = "settled", **conditions: Unpack[FilterOptions]
    ) -> Iterator[MessageInfo]:
        """Iterate over messages that ended within `retention.delivered`, as `pending` does."""
        after: str | None = None
        while True:
            found: Page = self.call(requests.page(after=after, state=state, **conditions))
            yield from found.messages
            after = found.after
            if after is None:
                return

    def count_where(self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]) -> Job:
        """Start a job that counts all pending messages of a filter by target; without conditions,
        all that are pending."""
        return self._job(requests.start_job("count", conditions), wait)

    def cancel_where(
        self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]
    ) -> Job:
        """Start a job that cancels all pending messages of a filter; conditions as of `conditions`.

        With `wait` the call returns once the job has ended, or after this time while it goes on.
        Messages that are scheduled after the job began are not concerned."""
        return self._job(requests.start_job("cancel", conditions), wait)

    def reschedule_where(
        self,
        *,
        deliver_at: Time | None = None,
        delay: Delay | None = None,
        wait: Delay | None = None,
        **conditions: Unpack[FilterOptions],
    ) -> Job:
        """Start a job that gives all pending messages of a filter a new time; see
        `cancel_where`."""
        return self._job(requests.start_job("reschedule", conditions, deliver_at, delay), wait)

    def fire_where(self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]) -> Job:
        """Start a job that delivers all pending messages of a filter now; see `cancel_where`."""
        return self._job(requests.start_job("fire", conditions), wait)

    def pause_where(
        self,
        *,
        until: Time | None = None,
        wait: Delay | None = None,
        **conditions: Unpack[FilterOptions],
    ) -> Job:
        """Start a job that pauses all series of a filter, see `pause` and `cancel_where`."""
        return self._job(requests.start_job("pause", conditions, until=until), wait)

    def resume_where(
        self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]
    ) -> Job:
        """Start a job that lets all paused series of a filter go on, see `cancel_where`."""
        return self._job(requests.start_job("resume", conditions), wait)

    def job(self, id: str) -> Job:
        """Return the current state of a job; raises NotFound, also after its node was restarted.

        The node that runs it alone knows it: of a client with several addresses, one that this
        client started is asked for there, and any other one of `server`."""
        found: Job = self.call(requests.job(id))
        return found

    def jobs(self) -> list[Job]:
        """Return the jobs of the node, the latest first."""
        found: list[Job] = self.call(requests.jobs())
        return found

    def stop_job(self, id: str) -> Job:
        """Stop a job: it writes nothing more, and what it wrote stays."""
        found: Job = self.call(requests.stop_job(id))
        return found

    def _job(self, request: HttpRequest, wait: Delay | None) -> Job:
        started: Job = self.call(request)
        return started if wait is None else self.run(requests.follow_job(started, wait))

    def records(
        self,
        topic: str,
        *,
        partition: int = 0,
        offset: int | None = None,
        limit: int = 100,
        wait: Delay = "0ms",
    ) -> dict[str, Any]:
        """Records of a topic: `{"records": [...], "next_offset": n}`.

        With `wait` the call returns as soon as there is a record, at the latest after this time.
        """
        found: dict[str, Any] = self.call(requests.records(topic, partition, offset, limit, wait))
        return found

    def rates(self, topic: str | None = None) -> dict[str, Any]:
        """The rate limits and what waits: `{"rates": [...], "lanes": [...]}`; for a topic those of
        it alone."""
        found: dict[str, Any] = self.call(requests.rates(topic))
        return found

    def set_rate(self, pattern: str, rate: str) -> dict[str, Any]:
        """Set the rate limit of the topics that match a pattern: `200/s`, `50/s burst 100` or
        `unlimited`."""
        found: dict[str, Any] = self.call(requests.set_rate(pattern, rate))
        return found

    def remove_rate(self, pattern: str) -> dict[str, Any]:
        """Remove a rate limit that was set at run time; one of the configuration is in force
        again."""
        found: dict[str, Any] = self.call(requests.remove_rate(pattern))
        return found

    def ask(self, path: str, **query: Any) -> Any:
        """Send any GET of the HTTP interface and return the parsed JSON:
        `client.ask("/v1/shards")`."""
        return self.call(requests.ask(path, query))

    def post(self, path: str) -> Any:
        """Send a POST without a body and return the parsed JSON."""
        return self.call(requests.post(path))

    def dead_letters(
        self,
        *,
        id: str | bytes | None = None,
        resolved: bool = False,
        **which: Unpack[DeadLetterFilter],
    ) -> Iterator[DeadLetter]:
        """Iterate over dead letters, the newest first; they are fetched page by page.

        The filter is that of `DeadLetterFilter`: `target`, `reason`, `since`, `until`. `id`: only
        those of this message. `resolved`: also those that were replayed or discarded."""
        after: str | None = None
        while True:
            found: DeadLetterPage = self.call(
                dead_letters.page(which, id=id, resolved=resolved, after=after)
            )
            yield from found.letters
            after = found.after
            if after is None:
                return

    def dead_letter(self, id: str | bytes) -> WholeDeadLetter:
        """Return the newest dead letter of a message, with its payload; raises NotFound."""
        found: WholeDeadLetter = self.call(dead_letters.get(id))
        return found

    def dead_letter_at(self, partition: int, offset: int) -> WholeDeadLetter:
        """The dead letter at a position of the dead-letter topic: an id may have several."""
        found: WholeDeadLetter = self.call(dead_letters.at((partition, offset)))
        return found

    def replay_dead_letters(
        self,
        *,
        id: str | bytes | None = None,
        positions: Iterable[Position] = (),
        all: bool = False,
        dry_run: bool = False,
        anyway: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
        **which: Unpack[DeadLetterFilter],
    ) -> DeadLetterTotals:
        """Schedule dead letters again, due at once, the oldest first: the newest one of `id`, those
        at `positions` (partition and offset of each), those of a filter, or all.

        The filter is that of `dead_letters`. A replayed message keeps its id. A call that failed or
        was stopped may be repeated: nothing is delivered twice. Those whose cause is still there,
        such as a missing target, are left as they are and counted in `refused`; `anyway`: they are
        replayed too, and will fail again, except those that are `final`. `dry_run`: only count
        them. `rate`: at most this many a second. `progress` is called after each part with the
        totals so far."""
        return self.run(
            dead_letters.resolve_all(
                "replay",
                which,
                id=id,
                positions=positions,
                all=all,
                dry_run=dry_run,
                anyway=anyway,
                rate=rate,
                progress=progress,
            )
        )

    def discard_dead_letters(
        self,
        *,
        id: str | bytes | None = None,
        positions: Iterable[Position] = (),
        all: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
        **which: Unpack[DeadLetterFilter],
    ) -> DeadLetterTotals:
        """Mark dead letters as discarded, so that they are no longer listed or replayed. See
        `replay_dead_letters`."""
        return self.run(
            dead_letters.resolve_all(
                "discard",
                which,
                id=id,
                positions=positions,
                all=all,
                dry_run=dry_run,
                progress=progress,
            )
        )

    def close(self) -> None:
        """Close the connections. Later calls raise RuntimeError."""
        self._closed = True
        for server in list(self._connections):
            self._disconnect(server)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, steps: Steps[T]) -> T:
        """Send the requests of a call that takes several, and return its result."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    time.sleep(step)
                    step = next(steps)
                    continue
                try:
                    answer = self.call(step)
                except ClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    def call(self, request: HttpRequest) -> Any:
        """Send a request of `chronos.client.requests`, repeat it if that is allowed, and return the
        decoded answer."""
        check_open(self._closed)
        attempts = Attempts(request, self._timeout_s, self._retries)
        tried: set[str] = set()
        while True:
            self._refresh_routes(request, attempts)
            server = self._servers.choose(request, tried, time.monotonic())
            tried.add(server)
            answered = False
            closed: Exception | None = None
            try:
                status, body = self._exchange(
                    server, request, self._servers.timeout_s(request, attempts.left_s)
                )
                answered = True
                found = read_answer(request, status, body)
            except ClientError as error:
                if status not in requests.COME_BACK:
                    raise
                self._servers.refused(time.monotonic())
                failure = error
            except _NotConnected as error:
                self._disconnect(server)
                self._servers.failed(server, time.monotonic())
                failure = unreachable(server, error.cause)
                if self._servers.has_others(request, tried) and attempts.is_in_time:
                    # Nothing was sent: another node may get it, whether it may be repeated or not.
                    continue
            except (OSError, http.client.HTTPException) as error:
                self._disconnect(server)
                self._servers.failed(server, time.monotonic())
                failure = unreachable(server, error)
                closed = error
            else:
                self._servers.answered(server)
                self._servers.keep_job(server, request, found)
                return found
            try:
                wait_s = attempts.next_in_s(failure, answered=answered)
            except Unreachable:
                if closed is not None and speaks_tls(server, closed):
                    raise Unreachable(f"{server} speaks TLS: write https://") from closed
                raise
            time.sleep(wait_s)

    def _refresh_routes(self, request: HttpRequest, attempts: Attempts) -> None:
        """Ask one registry after the other for routes, if they are needed; without an answer the
        last ones stay."""
        if not self._servers.needs_routes(request, time.monotonic()):
            return
        for server in self._servers.registries(time.monotonic()):
            try:
                timeout_s = min(REGISTRY_S, attempts.left_s)
                status, body = self._exchange(server, self._servers.routes_request(), timeout_s)
            except (OSError, http.client.HTTPException, _NotConnected):
                self._disconnect(server)
                self._servers.failed(server, time.monotonic())
            else:
                if self._servers.learn(status, body, time.monotonic()):
                    return
            if not attempts.is_in_time:
                return

    def _exchange(self, server: str, request: HttpRequest, timeout_s: float) -> tuple[int, bytes]:
        """Send the request, on a new connection too if a kept one was closed, and return the status
        and the body; TimeoutError after `timeout_s` for all of it."""
        ends_s = time.monotonic() + timeout_s
        kept = self._connections.get(server)
        if kept is not None and (
            time.monotonic() - kept.used_s > KEEP_S or _is_readable(kept.connection.sock)
        ):
            # An idle connection that can be read was closed by the other side.
            self._disconnect(server)
        reused = server in self._connections
        try:
            return self._exchange_once(server, request, ends_s)
        except (ConnectionError, http.client.BadStatusLine):
            self._disconnect(server)
            # A kept connection may have been closed by the other side in the meantime; nothing was
            # done then.
            if not reused or not request.repeatable:
                raise
            return self._exchange_once(server, request, ends_s)

    def _exchange_once(self, server: str, request: HttpRequest, ends_s: float) -> tuple[int, bytes]:
        kept = self._connected(server, ends_s)
        headers = request.headers | self._authorization
        prefix = urlsplit(server).path.rstrip("/")
        kept.connection.response_class = partial(_answer, ends_s)  # type: ignore[assignment]
        kept.connection.request(request.method, prefix + request.path, request.body, headers)
        answer = kept.connection.getresponse()
        body = answer.read()
        kept.used_s = time.monotonic()
        return answer.status, body

    def _connected(self, server: str, ends_s: float) -> "_Connection":
        """A connection to the node, on which the rest of the time is left; raises _NotConnected."""
        kept = self._connections.get(server)
        if kept is None:
            kept = self._connections[server] = _Connection(self._open(server), time.monotonic())
        connection = kept.connection
        if connection.sock is None:
            try:
                connection.timeout = self._servers.connect_s(_left_s(ends_s))
                connection.connect()
            except (
                OSError,
                UnicodeError,
            ) as error:  # UnicodeError: a registered name that no resolver takes.
                raise _NotConnected(error) from error
        connection.sock.settimeout(_left_s(ends_s))
        return kept

    def _open(self, server: str) -> http.client.HTTPConnection:
        parts = urlsplit(server)
        assert parts.hostname is not None
        if parts.scheme == "https":
            context = self._tls or ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname, parts.port, context=context)
        return http.client.HTTPConnection(parts.hostname, parts.port)

    def _disconnect(self, server: str) -> None:
        kept = self._connections.pop(server, None)
        if kept is not None:
            kept.connection.close()


@dataclass
class _Connection:
    """A connection to a node, and when it was last used."""

    connection: http.client.HTTPConnection
    used_s: float


class _NotConnected(Exception):
    """No connection to the node: nothing was sent."""

    def __init__(self, cause: OSError | UnicodeError) -> None:
        self.cause = cause
        super().__init__(str(cause))


class _Bytes(io.RawIOBase):
    """The bytes that come from a socket until a time of `time.monotonic()`; TimeoutError after it.

    The time-out of the socket alone bounds one read, and an answer may come in any number."""

    def __init__(self, sock: socket.socket, ends_s: float) -> None:
        self._sock = sock
        self._bytes = sock.makefile("rb", buffering=0)
        self._ends_s = ends_s

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read once, as `io.RawIOBase` does."""
        self._sock.settimeout(_left_s(self._ends_s))
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        """Close the file of the socket, which keeps it open otherwise."""
        self._bytes.close()
        super().close()


def _answer(
    ends_s: float, sock: socket.socket, *arguments: Any, **options: Any
) -> http.client.HTTPResponse:
    """An answer that is read from the socket until this time at the latest."""
    made = http.client.HTTPResponse(sock, *arguments, **options)
    made.fp.close()
    made.fp = io.BufferedReader(_Bytes(sock, ends_s))
    return made


def _left_s(ends_s: float) -> float:
    """Time until `ends_s`; TimeoutError if there is none."""
    left_s = ends_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _is_readable(sock: socket.socket | None) -> bool:
    if sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))
