"""Group commit: writes the records of requests to the log, one write at a time.

Requests that come during a write go together into the next one: a disk or a broker acknowledges few large writes faster
than many small ones. The order of requests is kept.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor

from chronos.ports import Appended, Outgoing, RecordLog

GROUP_RECORDS = 5_000
"""Records of several requests in one write: as many as a step pulls."""

GROUP_BYTES = 8_000_000
"""Bytes of several requests in one write."""

TIMEOUT_S = 15.0
"""How long the log may take to acknowledge, from the request on."""

WRITE_S_MIN = 1.0
"""How long it may take at the least, for requests that waited behind another write."""

Waiting = tuple[Sequence[Outgoing], int, float, asyncio.Future[list[Appended]]]
"""Records, their size in bytes, the deadline by the loop's clock, the result."""


class Appender:
    """The only writer of the HTTP interface. For one event loop."""

    def __init__(self, log: RecordLog, executor: Executor) -> None:
        self._log = log
        self._executor = executor
        self._waiting: deque[Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[Outgoing], size_bytes: int) -> list[Appended]:
        """Write the records in order, and return once all of them are durable. What may wait is bounded by `bodies`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Appended]] = loop.create_future()
        self._waiting.append((records, size_bytes, loop.time() + TIMEOUT_S, future))
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group = self._next_group()
                records = [record for batch, *_ in group for record in batch]
                timeout_s = max(WRITE_S_MIN, group[0][2] - loop.time())
                try:
                    appended = await loop.run_in_executor(self._executor, self._log.append, records, timeout_s)
                except Exception as error:
                    for *_, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                start = 0
                for batch, _, _, future in group:
                    if not future.done():
                        future.set_result(appended[start : start + len(batch)])
                    start += len(batch)
        finally:
            self._writing = None

    def _next_group(self) -> list[Waiting]:
        """The next requests, at least one, as many as fit into one write."""
        taken = [self._waiting.popleft()]
        count, size = len(taken[0][0]), taken[0][1]
        while self._waiting:
            batch, batch_bytes, *_ = self._waiting[0]
            count, size = count + len(batch), size + batch_bytes
            if count > GROUP_RECORDS or size > GROUP_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken
