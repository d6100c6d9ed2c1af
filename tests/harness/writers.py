"""A writer around another one: tests override what a broker would do differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chronos.ports import Appended, Outgoing, Sent, Throttle, Verify, Writer


class AroundWriter:
    """See `ports.Writer`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def sent(self) -> Sequence[Sent]:
        return self._writer.sent

    @property
    def throttle(self) -> Throttle | None:
        return self._writer.throttle

    def begin_at(self, end: int) -> None:
        self._writer.begin_at(end)

    def send(self, messages: Sequence[Outgoing], progress: bytes) -> None:
        self._writer.send(messages, progress)

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        return self._writer.commit(verify, meanwhile)

    def close(self) -> None:
        self._writer.close()
