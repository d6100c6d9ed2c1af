"""Storage of an archive whose writer is killed at a step."""

from __future__ import annotations

from chronos.spark.storage import ArchiveStorage


class Killed(BaseException):
    """The process ends here."""


class Doomed(ArchiveStorage):
    """Storage whose writer is killed right before its change number `steps`."""

    def __init__(self, location: str, steps: int) -> None:
        super().__init__(location)
        self.steps_left = steps

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Killed

    def write(self, path: str, data: bytes) -> None:
        self._step()
        super().write(path, data)

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def remove(self, folder: str) -> None:
        if self.exists(folder):
            self._step()
        super().remove(folder)

    def remove_file(self, path: str) -> None:
        self._step()
        super().remove_file(path)
