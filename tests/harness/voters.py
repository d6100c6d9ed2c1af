"""Voters of `coordinator.kind: raft` in this process, without nodes around them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from chronos.adapters.raft.voter import Voter, Voting
from chronos.adapters.raft.wire import Signer
from chronos.core.cluster.roles import Roles
from chronos.core.cluster.timing import Timing
from tests.harness.ports import free_port

SECRET = "a secret of the tests, long enough"

HEARTBEAT_MS = 150

ANSWER_S = 30.0
"""How long the loop may take for a call from another thread."""

T = TypeVar("T")


class Voters:
    """Three voters, `v1` to `v3`, in one event loop."""

    def __init__(self, directory: Path, *, timeout_ms: int, count: int = 3) -> None:
        self.ports = {f"v{number}": free_port() for number in range(1, count + 1)}
        self.peers = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self._directory = directory
        self._timeout_ms = timeout_ms
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="voters", daemon=True)
        self._thread.start()
        self.running: dict[str, Voter] = {}
        for name in self.ports:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a voter with the file that it has."""

        async def start() -> None:
            file = self._directory / f"{name}.raft"
            voter = Voter(
                name,
                self.peers,
                Voting(host="127.0.0.1", port=self.ports[name], path=file),
                signer=Signer(SECRET, "test", self.peers),
                timing=Timing(heartbeat_ms=HEARTBEAT_MS, timeout_ms=self._timeout_ms),
            )
            await voter.start()
            self.running[name] = voter

        self._run(start())

    def stop(self, name: str) -> None:
        """Stop a voter in order."""
        self._run(self.running.pop(name).stop())

    def leader(self) -> str:
        """The name of the voter that leads; it is waited for."""
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s:
            for name, voter in self.running.items():
                if voter.leads:
                    return name
            time.sleep(0.01)
        raise AssertionError("no voter leads")

    def end(self, name: str) -> None:
        """End a voter by an error inside, as a bug would; its port stays open."""

        async def end(voter: Voter) -> None:
            voter._give(object())  # type: ignore[arg-type]

        self._run(end(self.running[name]))

    def connections(self, name: str) -> int:
        """The number of connections of a voter."""

        async def count(voter: Voter) -> int:
            return voter.connections

        return self._run(count(self.running[name]))

    def expel(self, node: str) -> None:
        """End the session of a member."""

        async def expel(voter: Voter) -> None:
            voter.sessions.leave(voter.sessions.incarnation(node))

        self._run(expel(self.running[self.leader()]))

    def publish(self, roles: Roles) -> None:
        """Publish roles as another controller would."""
        self._run(self.running[self.leader()].publish(roles))

    def close(self) -> None:
        """Stop all."""
        for name in list(self.running):
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_S)
