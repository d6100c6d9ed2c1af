"""Writes what requests want written: those that come while a write is under way go together in the next one.

One write at a time is what a disk or a broker acknowledges fastest for many; the order of requests is kept.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor

from chronos.admin.problems import ProblemError
from chronos.ports import Appended, Outgoing, RecordLog

TOGETHER_RECORDS = 5_000
"""Records of several requests written together: a step's worth."""

TOGETHER_BYTES = 8_000_000
"""Bytes of several requests written together."""

WAITING_BYTES_MAX = 256_000_000
"""Bytes that may wait; beyond it requests are turned away. Each is in memory about three times by then."""

TIMEOUT_S = 15.0
"""How long the log may take to acknowledge."""

Waiting = tuple[Sequence[Outgoing], int, asyncio.Future[list[Appended]]]


class Appender:
    """The one writer of the HTTP interface. For one event loop."""

    def __init__(self, log: RecordLog, executor: Executor) -> None:
        self._log = log
        self._executor = executor
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[Outgoing], size_bytes: int) -> list[Appended]:
        """Write the records, in order, and return once all of them are durable."""
        if self._waiting and self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            raise ProblemError(503, "busy", f"{self._waiting_bytes} bytes wait to be written", hint="try again, slower")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Appended]] = loop.create_future()
        self._waiting.append((records, size_bytes, future))
        self._waiting_bytes += size_bytes
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                together = self._together()
                records = [record for batch, _, _ in together for record in batch]
                try:
                    appended = await loop.run_in_executor(self._executor, self._log.append, records, TIMEOUT_S)
                except Exception as error:
                    for _, _, future in together:
                        if not future.done():
                            future.set_exception(error)
                    continue
                at = 0
                for batch, _, future in together:
                    if not future.done():
                        future.set_result(appended[at : at + len(batch)])
                    at += len(batch)
        finally:
            self._writing = None

    def _together(self) -> list[Waiting]:
        """The next requests, at least one, as many as fit in one write."""
        taken = [self._waiting.popleft()]
        count, size = len(taken[0][0]), taken[0][1]
        while self._waiting:
            batch, batch_bytes, _ = self._waiting[0]
            count, size = count + len(batch), size + batch_bytes
            if count > TOGETHER_RECORDS or size > TOGETHER_BYTES:
                break
            taken.append(self._waiting.popleft())
        self._waiting_bytes -= sum(batch_bytes for _, batch_bytes, _ in taken)
        return taken
