"""Replays of dead letters, as `chronos dead-letters replay` writes them: at any moment, and often
several of one letter."""

from __future__ import annotations

from random import Random

from chronos.core.letters import Letter, control_headers, read, replay
from chronos.core.message import ATTEMPTS, EXPIRE_AT, REPLAYED, TARGET_KEY, Rejection
from chronos.core.shard.rules import Rules
from tests.sim.broker import BYTES_MAX, DEAD_LETTER, DELAY
from tests.sim.expectations import Expectation
from tests.sim.workload import MAX_DELAY_MS, Producers

NEWEST = 6
"""Dead letters among which one is chosen, so that one letter is often replayed again."""


class Replays:
    """The operators of a cluster."""

    def __init__(self, producers: Producers, dice: Random) -> None:
        self._producers = producers
        self._dice = dice
        self._rules = [
            Rules(
                shard=shard, shards=producers.shards, own_topics=(DELAY,), max_delay_ms=MAX_DELAY_MS
            )
            for shard in range(producers.shards)
        ]

    def one(self) -> None:
        """Replay one of the newest dead letters, sometimes twice: a request whose answer was lost
        is repeated."""
        letters = self._letters()[-NEWEST:]
        if letters:
            letter = self._dice.choice(letters)
            self._write(letter)
            if self._dice.random() < 0.3:
                self._producers.world.after(
                    self._dice.choice([0, 1, 300, 3_000]), self._write, letter
                )

    def all(self) -> None:
        """Replay every dead letter, whether or not it was replayed before."""
        for letter in self._letters():
            self._write(letter)

    def _letters(self) -> list[Letter]:
        records = self._producers.brokers.topics[DEAD_LETTER][0].committed()
        found = [read(0, record, whole=True) for record in records]
        return [letter for letter in found if isinstance(letter, Letter)]

    def _write(self, letter: Letter) -> None:
        made = replay(letter, self._rules, DELAY, BYTES_MAX, self._producers.world.now_ms)
        assert letter.record is not None
        assert not isinstance(made, Rejection), made
        shard, key, headers = made
        control = dict(headers)
        now_ms = self._producers.brokers.clock(
            self._producers.brokers.topics[DELAY][shard]
        ).now_ms()
        expire_at, attempts = control.get(EXPIRE_AT), control_headers(letter).get(ATTEMPTS)
        expected = Expectation(
            verb="replay",
            id=letter.id if key is None else key,
            due_ms=now_ms,
            delay_ms=0,
            target=letter.target,
            key=control_headers(letter).get(TARGET_KEY),
            value=letter.record.value,
            expire_at_ms=None if expire_at is None else int(expire_at),
            replayed=control[REPLAYED],
            attempts=int(attempts or b"0"),
        )
        self._producers.write(None, shard, expected, headers, key)
