"""The client for asyncio, on aiohttp. Its methods are those of the blocking client, which documents
them."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

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

if TYPE_CHECKING:
    import ssl

    import aiohttp

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio: `async with AsyncClient() as client: await client.schedule(...)`."""

    def __init__(
        self,
        server: str | Sequence[str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        token: str | None = None,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self._servers = Servers(server)
        self._authorization = authorization(token)
        self._tls = tls or context_of_variables()
        self._timeout_s = timeout_s
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def server(self) -> str:
        """See `Client.server`."""
        return self._servers.home

    async def schedule(
        self,
        topic: str,
        value: Bytes = None,
        *,
        wait: Delay | bool | None = None,
        **options: Unpack[MessageOptions],
    ) -> Scheduled:
        """See `Client.schedule`."""
        scheduled: Scheduled = await self.call(requests.schedule(message(topic, value, **options)))
        if wait is None or wait is False:
            return scheduled
        return await self.confirm(scheduled, wait, options.get("on_conflict"))

    async def confirm(
        self,
        scheduled: Scheduled,
        wait: Delay | Literal[True] = requests.CONFIRM_WAIT,
        on_conflict: OnConflict | None = None,
    ) -> Scheduled:
        """See `Client.confirm`."""
        return await self.run(requests.confirm(scheduled, wait, on_conflict))

    async def schedule_many(
        self, messages: Sequence[Mapping[str, Any]], *, wait: Delay | bool | None = None
    ) -> list[Scheduled]:
        """See `Client.schedule_many`."""
        scheduled: list[Scheduled] = await self.call(requests.schedule(messages, wait))
        return scheduled

    async def get(
        self, id: str | bytes, *, payload: bool = False, rejections: bool = False
    ) -> MessageInfo:
        """See `Client.get`."""
        found: MessageInfo = await self.call(
            requests.get(id, payload=payload, rejections=rejections)
        )
        return found

    async def cancel(self, id: str | bytes) -> Result:
        """See `Client.cancel`."""
        result: Result = await self.call(requests.cancel(id))
        return result

    async def reschedule(
        self, id: str | bytes, *, deliver_at: Time | None = None, delay: Delay | None = None
    ) -> Result:
        """See `Client.reschedule`."""
        result: Result = await self.call(requests.reschedule(id, deliver_at, delay))
        return result

    async def fire(self, id: str | bytes) -> Result:
        """See `Client.fire`."""
        result: Result = await self.call(requests.fire(id))
        return result

    async def pause(self, id: str | bytes, *, until: Time | None = None) -> Result:
        """See `Client.pause`."""
        result: Result = await self.call(requests.pause(id, until))
        return result

    async def resume(self, id: str | bytes) -> Result:
        """See `Client.resume`."""
        result: Result = await self.call(requests.resume(id))
        return result

    async def pending(self, **conditions: Unpack[FilterOptions]) -> AsyncIterator[MessageInfo]:
        """See `Client.pending`."""
        after: str | None = None
        while True:
            found: Page = await self.call(requests.page(after=after, **conditions))
            for one in found.messages:
                yield one
            after = found.after
            if after is None:
                return

    async def settled(
        self, state: ListedState = "settled", **conditions: Unpack[FilterOptions]
    ) -> AsyncIterator[MessageInfo]:
        """See `Client.settled`."""
        after: str | None = None
        while True:
            found: Page = await self.call(requests.page(after=after, state=state, **conditions))
            for one in found.messages:
                yield one
            after = found.after
            if after is None:
                return

    async def count_where(
        self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]
    ) -> Job:
        """See `Client.count_where`."""
        return await self._job(requests.start_job("count", conditions), wait)

    async def cancel_where(
        self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]
    ) -> Job:
        """See `Client.cancel_where`."""
        return await self._job(requests.start_job("cancel", conditions), wait)

    async def reschedule_where(
        self,
        *,
        deliver_at: Time | None = None,
        delay: Delay | None = None,
        wait: Delay | None = None,
        **conditions: Unpack[FilterOptions],
    ) -> Job:
        """See `Client.reschedule_where`."""
        return await self._job(
            requests.start_job("reschedule", conditions, deliver_at, delay), wait
        )

    async def fire_where(
        self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]
    ) -> Job:
        """See `Client.fire_where`."""
        return await self._job(requests.start_job("fire", conditions), wait)

    async def pause_where(
        self,
        *,
        until: Time | None = None,
        wait: Delay | None = None,
        **conditions: Unpack[FilterOptions],
    ) -> Job:
        """See `Client.pause_where`."""
        return await self._job(requests.start_job("pause", conditions, until=until), wait)

    async def resume_where(
        self, *, wait: Delay | None = None, **conditions: Unpack[FilterOptions]
    ) -> Job:
        """See `Client.resume_where`."""
        return await self._job(requests.start_job("resume", conditions), wait)

    async def job(self, id: str) -> Job:
        """See `Client.job`."""
        found: Job = await self.call(requests.job(id))
        return found

    async def jobs(self) -> list[Job]:
        """See `Client.jobs`."""
        found: list[Job] = await self.call(requests.jobs())
        return found

    async def stop_job(self, id: str) -> Job:
        """See `Client.stop_job`."""
        found: Job = await self.call(requests.stop_job(id))
        return found

    async def _job(self, request: HttpRequest, wait: Delay | None) -> Job:
        started: Job = await self.call(request)
        return started if wait is None else await self.run(requests.follow_job(started, wait))

    async def records(
        self,
        topic: str,
        *,
        partition: int = 0,
        offset: int | None = None,
        limit: int = 100,
        wait: Delay = "0ms",
    ) -> dict[str, Any]:
        """See `Client.records`."""
        found: dict[str, Any] = await self.call(
            requests.records(topic, partition, offset, limit, wait)
        )
        return found

    async def rates(self, topic: str | None = None) -> dict[str, Any]:
        """See `Client.rates`."""
        found: dict[str, Any] = await self.call(requests.rates(topic))
        return found

    async def set_rate(self, pattern: str, rate: str) -> dict[str, Any]:
        """See `Client.set_rate`."""
        found: dict[str, Any] = await self.call(requests.set_rate(pattern, rate))
        return found

    async def remove_rate(self, pattern: str) -> dict[str, Any]:
        """See `Client.remove_rate`."""
        found: dict[str, Any] = await self.call(requests.remove_rate(pattern))
        return found

    async def ask(self, path: str, **query: Any) -> Any:
        """See `Client.ask`."""
        return await self.call(requests.ask(path, query))

    async def post(self, path: str) -> Any:
        """See `Client.post`."""
        return await self.call(requests.post(path))

    async def dead_letters(
        self,
        *,
        id: str | bytes | None = None,
        resolved: bool = False,
        **which: Unpack[DeadLetterFilter],
    ) -> AsyncIterator[DeadLetter]:
        """See `Client.dead_letters`."""
        after: str | None = None
        while True:
            found: DeadLetterPage = await self.call(
                dead_letters.page(which, id=id, resolved=resolved, after=after)
            )
            for one in found.letters:
                yield one
            after = found.after
            if after is None:
                return

    async def dead_letter(self, id: str | bytes) -> WholeDeadLetter:
        """See `Client.dead_letter`."""
        found: WholeDeadLetter = await self.call(dead_letters.get(id))
        return found

    async def dead_letter_at(self, partition: int, offset: int) -> WholeDeadLetter:
        """See `Client.dead_letter_at`."""
        found: WholeDeadLetter = await self.call(dead_letters.at((partition, offset)))
        return found

    async def replay_dead_letters(
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
        """See `Client.replay_dead_letters`."""
        return await self.run(
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

    async def discard_dead_letters(
        self,
        *,
        id: str | bytes | None = None,
        positions: Iterable[Position] = (),
        all: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
        **which: Unpack[DeadLetterFilter],
    ) -> DeadLetterTotals:
        """See `Client.discard_dead_letters`."""
        return await self.run(
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

    async def close(self) -> None:
        """Close the connections. Later calls raise RuntimeError."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, steps: Steps[T]) -> T:
        """See `Client.run`."""
        import asyncio

        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(steps)
                    continue
                try:
                    answer = await self.call(step)
                except ClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    async def call(self, request: HttpRequest) -> Any:
        """See `Client.call`."""
        import asyncio

        import aiohttp

        check_open(self._closed)
        if self._session is None:
            self._session = aiohttp.ClientSession()
        attempts = Attempts(request, self._timeout_s, self._retries)
        tried: set[str] = set()
        while True:
            await self._refresh_routes(request, attempts)
            server = self._servers.choose(request, tried, time.monotonic())
            tried.add(server)
            answered = False
            closed: Exception | None = None
            try:
                timeout_s = self._servers.timeout_s(request, attempts.left_s)
                status, body = await self._exchange(server, request, timeout_s)
                answered = True
                found = read_answer(request, status, body)
            except ClientError as error:
                if status not in requests.COME_BACK:
                    raise
                self._servers.refused(time.monotonic())
                failure = error
            except (aiohttp.ClientError, OSError) as error:
                self._servers.failed(server, time.monotonic())
                failure = unreachable(server, error)
                if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError):
                    closed = ConnectionResetError()
                is_unsent = isinstance(
                    error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
                )
                if is_unsent and self._servers.has_others(request, tried) and attempts.is_in_time:
                    # Another node may get it, whether it may be repeated or not.
                    continue
            else:
                self._servers.answered(server)
                self._servers.keep_job(server, request, found)
                return found
            try:
                wait_s = attempts.next_in_s(failure, answered=answered)
            except Unreachable:
                if closed is not None and await asyncio.to_thread(speaks_tls, server, closed):
                    raise Unreachable(f"{server} speaks TLS: write https://") from None
                raise
            await asyncio.sleep(wait_s)

    async def _refresh_routes(self, request: HttpRequest, attempts: Attempts) -> None:
        """See `Client._refresh_routes`."""
        import aiohttp

        if not self._servers.needs_routes(request, time.monotonic()):
            return
        for server in self._servers.registries(time.monotonic()):
            try:
                timeout_s = min(REGISTRY_S, attempts.left_s)
                status, body = await self._exchange(
                    server, self._servers.routes_request(), timeout_s
                )
            except (aiohttp.ClientError, OSError):
                self._servers.failed(server, time.monotonic())
            else:
                if self._servers.learn(status, body, time.monotonic()):
                    return
            if not attempts.is_in_time:
                return

    async def _exchange(
        self, server: str, request: HttpRequest, timeout_s: float
    ) -> tuple[int, bytes]:
        import aiohttp

        assert self._session is not None
        async with self._session.request(
            request.method,
            server.rstrip("/") + request.path,
            data=request.body,
            headers=request.headers | self._authorization,
            ssl=self._tls or True,
            timeout=aiohttp.ClientTimeout(
                total=timeout_s, sock_connect=self._servers.connect_s(timeout_s)
            ),
        ) as answer:
            return answer.status, await answer.read()
