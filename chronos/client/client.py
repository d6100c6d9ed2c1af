"""The library: schedule, find, cancel and move messages over HTTP, and headers for those who have a producer.

    Client, AsyncClient        the same verbs, blocking and not
    headers(...)               control headers for a record you send to the delay topic yourself

Every call has one deadline, `timeout_s`, which covers its retries. Calls that may be repeated without harm are, when
the service does not answer or asks to come back: reading, cancelling, moving to a time, and scheduling with an id.

    ChronosError
    └── ClientError            what was asked was not done; `exit_code` as the command line ends
        ├── Unreachable  3     nobody answers at the address, or not in time
        ├── NotFound     4     no message has the id
        ├── Refused      2     the request is wrong; `errors` says which field
        └── ServiceFailed 1    the service could not do it now
"""

import http.client
import json
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from chronos.core.message import (
    ACTION,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    ON_CONFLICT,
    TARGET_KEY,
    TARGET_TOPIC,
    VERBS,
)
from chronos.core.timefmt import parse_duration_ms, parse_time_ms
from chronos.errors import ChronosError

if TYPE_CHECKING:
    import aiohttp

SERVER = "http://127.0.0.1:7700"
"""Where a service listens unless told otherwise."""

TIMEOUT_S = 30.0
"""Longest a call may take, all its retries together."""

RETRIES = 4
"""Most repetitions of a call, however much time is left."""

BACK_OFF_S = 0.1
"""Wait before the first repetition; it doubles, and half of it is drawn by lot."""

KEEP_S = 30.0
"""How long an idle connection is used again: less than the service keeps it."""

COME_BACK = frozenset({429, 502, 503, 504})
"""Statuses that ask to try again."""

Time = datetime | int | str
"""An aware `datetime`, epoch milliseconds, or RFC 3339 with an offset."""

Delay = timedelta | int | str
"""A `timedelta`, milliseconds, or one number and a unit: `90s`."""

Bytes = bytes | str | None
"""Text is sent as UTF-8."""


class ClientError(ChronosError):
    """What was asked was not done."""


class Unreachable(ClientError):
    """Nobody answers at the address, or not in time. Whether it was done is not known."""

    exit_code = 3


class NotFound(ClientError):
    """No message has the id."""

    exit_code = 4


class Refused(ClientError):
    """The request is wrong and will be refused again. `errors` holds what is wrong, field by field."""

    exit_code = 2

    def __init__(self, text: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        self.errors = list(errors)
        super().__init__(text)


class ServiceFailed(ClientError):
    """The service answered that it cannot do it, at least not now."""


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the log has acknowledged."""

    id: str
    """What it is known by: yours, or its address."""
    shard: int
    offset: int
    """Of its record in the delay topic."""
    due_at: datetime


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a cancel, reschedule or fire."""

    result: str
    """cancelled, rescheduled or fired; too_late, unknown, refused; accepted: not applied yet."""
    id: str
    shard: int
    offset: int
    detail: str | None = None

    def __bool__(self) -> bool:
        return self.result in ("cancelled", "rescheduled", "fired")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is, or was, delivered."""

    topic: str
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, Any] = msgspec.field(default_factory=dict)


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a message."""

    id: str
    state: str
    """pending, delivered, cancelled, expired or dead."""
    shard: int
    offset: int
    due_at: datetime
    planned_at: datetime
    """When it is taken up: later than `due_at` for a late arrival or a retry."""
    settled_at: datetime | None = None
    accepted_at: datetime | None = None
    expire_at: datetime | None = None
    target: Target | None = None
    """None once the message itself is gone."""
    occurrence: int = 1
    attempt: int = 1
    value_bytes: int | None = None


# --- Headers for a producer of one's own


def headers(
    *,
    target: str | None = None,
    at: Time | None = None,
    delay: Delay | None = None,
    key: Bytes = None,
    action: str | None = None,
    on_conflict: str | None = None,
    expire_at: Time | None = None,
) -> list[tuple[str, bytes]]:
    """Control headers for a record you send to the delay topic yourself; the record's key is the message's id.

    `at` or `delay` says when, `target` where, `key` is the Kafka key of the delivered message. ValueError for what
    Chronos would refuse anyway: a naive `datetime`, an unknown action, both times.
    """
    if at is not None and delay is not None:
        raise ValueError("give `at` or `delay`, not both")
    if action is not None and action.encode() not in VERBS:
        raise ValueError(f"action {action!r} is none of {', '.join(word.decode() for word in VERBS)}")
    found: list[tuple[str, bytes]] = []
    if action is not None:
        found.append((ACTION, action.encode()))
    if action in (None, "schedule", "replace"):
        if target is None:
            raise ValueError("`target` is missing: the topic to deliver to")
        if at is None and delay is None:
            raise ValueError("give `at` or `delay`: when to deliver")
    if at is not None:
        found.append((DELIVER_AT, b"%d" % time_ms(at)))
    if delay is not None:
        found.append((DELAY, b"%d" % delay_ms(delay)))
    if target is not None:
        found.append((TARGET_TOPIC, target.encode()))
    if key is not None:
        found.append((TARGET_KEY, key.encode() if isinstance(key, str) else key))
    if on_conflict is not None:
        found.append((ON_CONFLICT, on_conflict.encode()))
    if expire_at is not None:
        found.append((EXPIRE_AT, b"%d" % time_ms(expire_at)))
    return found


def time_ms(value: Time) -> int:
    """Epoch milliseconds, rounded up; ValueError for a time without an offset."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"{value!r} has no time zone: which hour it means is never guessed; add tzinfo")
        return -((datetime(1970, 1, 1, tzinfo=UTC) - value) // timedelta(milliseconds=1))
    return parse_time_ms(str(value))


def delay_ms(value: Delay) -> int:
    """Milliseconds, rounded up."""
    if isinstance(value, timedelta):
        if value < timedelta():
            raise ValueError(f"{value!r} lies in the past")
        return -(-value // timedelta(milliseconds=1))
    return parse_duration_ms(str(value))


# --- What is asked, and how answers are read: no sockets here


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str
    path: str
    decode: Callable[[bytes], Any]
    body: bytes | None = None
    repeatable: bool = True
    wait_s: float = 0.0
    """How long the service may wait by itself before it answers."""


def message(
    topic: str,
    value: Bytes = None,
    *,
    at: Time | None = None,
    delay: Delay | None = None,
    id: str | bytes | None = None,
    key: Bytes = None,
    headers: Mapping[str, Bytes] | None = None,
    on_conflict: str | None = None,
    expire_at: Time | None = None,
) -> dict[str, Any]:
    """A message as the API takes it, for `schedule_many`. See `Client.schedule`."""
    if (at is None) == (delay is None):
        raise ValueError("give `at` or `delay`: when to deliver")
    target: dict[str, Any] = {"topic": topic} | _either("key", key)
    if headers:
        target["headers"] = {name: _header(content) for name, content in headers.items()}
    found: dict[str, Any] = {"target": target} | _either("value", value)
    if at is not None:
        found["deliver_at"] = time_ms(at)
    if delay is not None:
        found["delay"] = delay_ms(delay)
    if id is not None:
        found["id"] = _id(id)
    if on_conflict is not None:
        found["on_conflict"] = on_conflict
    if expire_at is not None:
        found["expire_at"] = time_ms(expire_at)
    return found


def _either(name: str, content: Bytes) -> dict[str, Any]:
    if content is None:
        return {}
    text = _text(content)
    return {name: text} if text is not None else {f"{name}_base64": _base64(content)}


def _header(content: Bytes) -> Any:
    if content is None:
        return None
    text = _text(content)
    return text if text is not None else {"base64": _base64(content)}


def _text(content: bytes | str) -> str | None:
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _base64(content: bytes | str) -> str:
    import base64

    return base64.b64encode(content if isinstance(content, bytes) else content.encode()).decode()


def _id(id: str | bytes) -> str:
    """An id as the API writes it: bytes that are not text in base64."""
    if isinstance(id, str):
        return id
    text = _text(id)
    return text if text is not None and not text.startswith("base64:") else "base64:" + _base64(id)


def _path(id: str | bytes, rest: str = "") -> str:
    text = _id(id)
    if not text.strip("."):
        # Clients and proxies take dots for steps in the path.
        text = "base64:" + _base64(text)
    return f"/v1/messages/{quote(text, safe='')}{rest}"


_encode = msgspec.json.Encoder().encode
_scheduled = msgspec.json.Decoder(Scheduled).decode
_scheduled_many = msgspec.json.Decoder(list[Scheduled]).decode
_result = msgspec.json.Decoder(Result).decode
_info = msgspec.json.Decoder(MessageInfo).decode


class _Page(msgspec.Struct):
    messages: list[MessageInfo]
    after: str | None


_page = msgspec.json.Decoder(_Page).decode


def _ask_schedule(messages: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Ask:
    many = not isinstance(messages, Mapping)
    each: Iterable[Mapping[str, Any]] = messages if not isinstance(messages, Mapping) else [messages]
    return Ask(
        method="POST",
        path="/v1/messages",
        body=_encode(messages),
        decode=_scheduled_many if many else _scheduled,
        repeatable=all("id" in one for one in each),
    )


def _ask_move(id: str | bytes, at: Time | None, delay: Delay | None) -> Ask:
    if (at is None) == (delay is None):
        raise ValueError("give `at` or `delay`: when to deliver")
    body: dict[str, Any] = {}
    if at is not None:
        body["deliver_at"] = time_ms(at)
    if delay is not None:
        body["delay"] = delay_ms(delay)
    return Ask(
        method="PATCH", path=_path(id), body=_encode(body), decode=_result, repeatable=at is not None, wait_s=5.0
    )


def _ask_page(target: str | None, due_from: Time | None, due_to: Time | None, limit: int, after: str | None) -> Ask:
    query: dict[str, Any] = {"limit": limit}
    if target is not None:
        query["target"] = target
    if due_from is not None:
        query["due_from"] = time_ms(due_from)
    if due_to is not None:
        query["due_to"] = time_ms(due_to)
    if after is not None:
        query["after"] = after
    return _ask_get("/v1/messages", query, _page)


def _ask_get(path: str, query: Mapping[str, Any], decode: Callable[[bytes], Any] = json.loads) -> Ask:
    return Ask(method="GET", path=f"{path}?{urlencode(query)}" if query else path, decode=decode)


def _ask_records(topic: str, partition: int, offset: int | None, limit: int, wait: Delay) -> Ask:
    wait_ms = delay_ms(wait)
    query: dict[str, Any] = {"partition": partition, "limit": limit, "wait": wait_ms}
    if offset is not None:
        query["offset"] = offset
    path = f"/v1/topics/{quote(topic, safe='')}/records?{urlencode(query)}"
    return Ask(method="GET", path=path, decode=json.loads, wait_s=wait_ms / 1_000)


def _read(ask: Ask, status: int, body: bytes) -> Any:
    """The answer, or what its problem means."""
    if status < 300:
        try:
            return ask.decode(body)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ServiceFailed(f"{ask.method} {ask.path} gave an answer that is none of Chronos's: {error}") from None
    try:
        problem = json.loads(body)
        text = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        raise ServiceFailed(f"{ask.method} {ask.path} answered {status}: is this a Chronos?") from None
    if "hint" in problem:
        text += f" ({problem['hint']})"
    if status == 404:
        raise NotFound(text)
    if status in (409, 410) or status >= 500 or status == 429:
        raise ServiceFailed(text)
    raise Refused(text, problem.get("errors", ()))


class _Attempts:
    """The one deadline of a call, and when it may be tried again."""

    def __init__(self, ask: Ask, timeout_s: float, retries: int) -> None:
        self._ends_s = time.monotonic() + timeout_s + ask.wait_s
        self._left = retries if ask.repeatable else 0
        self._wait_s = BACK_OFF_S

    @property
    def left_s(self) -> float:
        """Until the deadline; never nothing, so that a socket can be given it."""
        return max(0.05, self._ends_s - time.monotonic())

    def again_in_s(self) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        if self._left <= 0 or self._wait_s >= self._ends_s - time.monotonic():
            return None
        self._left -= 1
        wait_s, self._wait_s = self._wait_s, 2 * self._wait_s
        return wait_s * random.uniform(0.5, 1.0)


# --- Blocking


class Client:
    """Talks to a service over one connection. For one thread; use one for each.

    `server` is the address, by default `$CHRONOS_SERVER` or `http://127.0.0.1:7700`.
    """

    def __init__(self, server: str | None = None, *, timeout_s: float = TIMEOUT_S, retries: int = RETRIES) -> None:
        self.server = _address(server)
        self._timeout_s = timeout_s
        self._retries = retries
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def schedule(
        self,
        topic: str,
        value: Bytes = None,
        *,
        at: Time | None = None,
        delay: Delay | None = None,
        id: str | bytes | None = None,
        key: Bytes = None,
        headers: Mapping[str, Bytes] | None = None,
        on_conflict: str | None = None,
        expire_at: Time | None = None,
    ) -> Scheduled:
        """Have `value` delivered to `topic` at a time or after a delay; returns once it is on disk.

        `id` names it, to find, cancel or replace it; `key` is the Kafka key it is delivered with. What becomes of it
        when the id is pending already says `on_conflict`: `reject`, `replace` or `ignore`.
        """
        found = message(
            topic, value, at=at, delay=delay, id=id, key=key, headers=headers, on_conflict=on_conflict,
            expire_at=expire_at,
        )  # fmt: skip
        done: Scheduled = self._send(_ask_schedule(found))
        return done

    def schedule_many(self, messages: Sequence[Mapping[str, Any]]) -> list[Scheduled]:
        """Up to 10,000 messages made by `message`, all or none."""
        done: list[Scheduled] = self._send(_ask_schedule(messages))
        return done

    def get(self, id: str | bytes) -> MessageInfo:
        """What is known of a message; NotFound."""
        found: MessageInfo = self._send(Ask(method="GET", path=_path(id), decode=_info))
        return found

    def cancel(self, id: str | bytes) -> Result:
        """Cancel a message. The result is true if it will not be delivered."""
        done: Result = self._send(Ask(method="DELETE", path=_path(id), decode=_result, wait_s=5.0))
        return done

    def reschedule(self, id: str | bytes, *, at: Time | None = None, delay: Delay | None = None) -> Result:
        """Give a pending message a new time."""
        done: Result = self._send(_ask_move(id, at, delay))
        return done

    def fire(self, id: str | bytes) -> Result:
        """Deliver a pending message now."""
        done: Result = self._send(
            Ask(method="POST", path=_path(id, "/fire"), decode=_result, repeatable=False, wait_s=5.0)
        )
        return done

    def pending(
        self,
        *,
        target: str | None = None,
        due_from: Time | None = None,
        due_to: Time | None = None,
    ) -> Iterator[MessageInfo]:
        """Pending messages in the order in which they are due, fetched page by page."""
        after: str | None = None
        while True:
            found: _Page = self._send(_ask_page(target, due_from, due_to, 500, after))
            yield from found.messages
            after = found.after
            if after is None:
                return

    def records(
        self, topic: str, *, partition: int = 0, offset: int | None = None, limit: int = 100, wait: Delay = 0
    ) -> dict[str, Any]:
        """Records of the embedded log, waiting for the first: `{"records": [...], "next_offset": n}`."""
        found: dict[str, Any] = self._send(_ask_records(topic, partition, offset, limit, wait))
        return found

    def ask(self, path: str, **query: Any) -> Any:
        """Any GET of the API, as JSON: `client.ask("/v1/shards")`."""
        return self._send(_ask_get(path, query))

    def post(self, path: str) -> Any:
        """A POST without a body, as JSON."""
        return self._send(Ask(method="POST", path=path, decode=json.loads, repeatable=False))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, ask: Ask) -> Any:
        attempts = _Attempts(ask, self._timeout_s, self._retries)
        while True:
            try:
                status, body = self._exchange(ask, attempts.left_s)
                if status not in COME_BACK:
                    return _read(ask, status, body)
                failure: ClientError | None = None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failure = Unreachable(_unreachable(self.server, error))
            wait_s = attempts.again_in_s()
            if wait_s is None:
                if failure is not None:
                    raise failure
                return _read(ask, status, body)
            time.sleep(wait_s)

    def _exchange(self, ask: Ask, timeout_s: float) -> tuple[int, bytes]:
        if time.monotonic() - self._used_s > KEEP_S:
            self.close()
        reused = self._connection is not None
        try:
            return self._exchange_once(ask, timeout_s)
        except (ConnectionError, http.client.BadStatusLine):
            self.close()
            # A connection that was kept may have been closed by the other side in the meantime; nothing was done then.
            if not reused or not ask.repeatable:
                raise
            return self._exchange_once(ask, timeout_s)

    def _exchange_once(self, ask: Ask, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connected(timeout_s)
        kinds = {"Content-Type": "application/json"} if ask.body is not None else {}
        connection.request(ask.method, self._prefix + ask.path, ask.body, kinds)
        answer = connection.getresponse()
        body = answer.read()
        self._used_s = time.monotonic()
        return answer.status, body

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            parts = urlsplit(self.server)
            assert parts.hostname is not None
            if parts.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    parts.hostname, parts.port, timeout=timeout_s, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection

    @property
    def _prefix(self) -> str:
        return urlsplit(self.server).path.rstrip("/")


# --- Not blocking


class AsyncClient:
    """As `Client`, for asyncio: `async with AsyncClient() as client: await client.schedule(...)`."""

    def __init__(self, server: str | None = None, *, timeout_s: float = TIMEOUT_S, retries: int = RETRIES) -> None:
        self.server = _address(server)
        self._timeout_s = timeout_s
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None

    async def schedule(
        self,
        topic: str,
        value: Bytes = None,
        *,
        at: Time | None = None,
        delay: Delay | None = None,
        id: str | bytes | None = None,
        key: Bytes = None,
        headers: Mapping[str, Bytes] | None = None,
        on_conflict: str | None = None,
        expire_at: Time | None = None,
    ) -> Scheduled:
        """See `Client.schedule`."""
        found = message(
            topic, value, at=at, delay=delay, id=id, key=key, headers=headers, on_conflict=on_conflict,
            expire_at=expire_at,
        )  # fmt: skip
        done: Scheduled = await self._send(_ask_schedule(found))
        return done

    async def schedule_many(self, messages: Sequence[Mapping[str, Any]]) -> list[Scheduled]:
        """See `Client.schedule_many`."""
        done: list[Scheduled] = await self._send(_ask_schedule(messages))
        return done

    async def get(self, id: str | bytes) -> MessageInfo:
        """See `Client.get`."""
        found: MessageInfo = await self._send(Ask(method="GET", path=_path(id), decode=_info))
        return found

    async def cancel(self, id: str | bytes) -> Result:
        """See `Client.cancel`."""
        done: Result = await self._send(Ask(method="DELETE", path=_path(id), decode=_result, wait_s=5.0))
        return done

    async def reschedule(self, id: str | bytes, *, at: Time | None = None, delay: Delay | None = None) -> Result:
        """See `Client.reschedule`."""
        done: Result = await self._send(_ask_move(id, at, delay))
        return done

    async def fire(self, id: str | bytes) -> Result:
        """See `Client.fire`."""
        done: Result = await self._send(
            Ask(method="POST", path=_path(id, "/fire"), decode=_result, repeatable=False, wait_s=5.0)
        )
        return done

    async def pending(
        self, *, target: str | None = None, due_from: Time | None = None, due_to: Time | None = None
    ) -> AsyncIterator[MessageInfo]:
        """See `Client.pending`."""
        after: str | None = None
        while True:
            found: _Page = await self._send(_ask_page(target, due_from, due_to, 500, after))
            for one in found.messages:
                yield one
            after = found.after
            if after is None:
                return

    async def records(
        self, topic: str, *, partition: int = 0, offset: int | None = None, limit: int = 100, wait: Delay = 0
    ) -> dict[str, Any]:
        """See `Client.records`."""
        found: dict[str, Any] = await self._send(_ask_records(topic, partition, offset, limit, wait))
        return found

    async def ask(self, path: str, **query: Any) -> Any:
        """See `Client.ask`."""
        return await self._send(_ask_get(path, query))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, ask: Ask) -> Any:
        import asyncio

        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession()
        attempts = _Attempts(ask, self._timeout_s, self._retries)
        while True:
            try:
                status, body = await self._exchange(ask, attempts.left_s)
                if status not in COME_BACK:
                    return _read(ask, status, body)
                failure: ClientError | None = None
            except (aiohttp.ClientError, OSError) as error:
                failure = Unreachable(_unreachable(self.server, error))
            wait_s = attempts.again_in_s()
            if wait_s is None:
                if failure is not None:
                    raise failure
                return _read(ask, status, body)
            await asyncio.sleep(wait_s)

    async def _exchange(self, ask: Ask, timeout_s: float) -> tuple[int, bytes]:
        import aiohttp

        assert self._session is not None
        kinds = {"Content-Type": "application/json"} if ask.body is not None else {}
        async with self._session.request(
            ask.method,
            self.server.rstrip("/") + ask.path,
            data=ask.body,
            headers=kinds,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            return answer.status, await answer.read()


def _address(server: str | None) -> str:
    found = server or os.environ.get("CHRONOS_SERVER") or SERVER
    if "://" not in found:
        found = f"http://{found}"
    parts = urlsplit(found)
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname is not None and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise Refused(f"{found!r} is no address of a service; write http://host:port")
    return found


def _unreachable(server: str, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"{server} did not answer in time"
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"nobody answers at {server}: {why}. Is the service running (chronos serve), and the address right?"
