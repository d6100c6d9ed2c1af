"""The requests that wait for a record of one partition share a reader, which goes with the last of
them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.embedded.reader import EmbeddedReader
from chronos.admin.http.waiting import Polls
from chronos.ports import ReaderMode, TopicSpec
from tests.harness.clock import HandClock


class CountingLog(EmbeddedLog):
    """A log that counts the readers that were opened."""

    readers = 0

    def reader(
        self, topic: str, partition: int, offset: int, *, mode: ReaderMode = "plain"
    ) -> EmbeddedReader:
        self.readers += 1
        return super().reader(topic, partition, offset, mode=mode)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CountingLog]:
    log = CountingLog(
        tmp_path / "log", clock=HandClock(), progress_topic="progress", disk_reserve_bytes=0
    )
    log.prepare([TopicSpec(name="orders", partitions=1, settings={})], create=True)
    yield log
    log.close()


def test_requests_share_a_reader_until_the_last_of_them_has_ended(log: CountingLog) -> None:
    async def requests() -> None:
        with ThreadPoolExecutor() as threads:
            polls = Polls(log, threads, asyncio.Event())

            async def wait(offset: int, timeout_s: float) -> None:
                await polls.wait_for_record("orders", 0, offset, timeout_s)

            first = asyncio.create_task(wait(0, 60.0))
            for _ in range(2):
                await wait(0, 0.01)
                assert log.readers == 1
            log.append([("orders", None, b"a", {}, 0)], 10.0)
            await first
            for opened in (2, 3):
                await wait(0, 60.0)  # for a record that is there
                assert log.readers == opened
            await wait(1, 0.01)
            async with asyncio.timeout(60):
                while log.readers == 4:  # until the reader of that request has gone
                    await wait(1, 0.0)
                    await asyncio.sleep(0.01)

    asyncio.run(requests())
