"""The watch over Chronos's own topics: whether they are still the same, and how they are set up.

A client continues without an error in a topic that was deleted and created again, although the same
offset is another record there, and no shard reads a partition that was added. Keeps its part of law
1: the process ends if the delay or the progress topic has another id, or if two checks in a row
miss it, or find another number of partitions or a wrong setting that the laws depend on. The
rejected and the dead-letter topic hold nothing that a shard needs: a missing one is created again,
if Chronos may create topics. Other settings that are wrong or unwise are reported; none is ever
changed."""

from collections.abc import Mapping, Sequence

import structlog

from chronos.errors import ConfigurationError, LogMismatch, Retry
from chronos.ports import TopicInfo, TopicLog, TopicSpec

log = structlog.get_logger("chronos.node")

CHECK_EVERY_MS = 1_000
"""Time between two checks: two requests to a broker."""

SETTINGS_EVERY_MS = 10_000
"""Time between two checks of the settings of topics."""

FAILED_CHECKS = 2
"""Checks in a row that must miss a topic, or find it changed: a broker that has just started may
know less than the others."""


class TopicWatch:
    """Checks Chronos's topics while the node runs. One thread calls `step`; any thread may read the
    rest."""

    def __init__(
        self,
        log_port: TopicLog,
        topics: Sequence[TopicSpec],
        infos: Mapping[str, TopicInfo],
        *,
        letters: Sequence[TopicSpec] = (),
        others: Sequence[TopicSpec] = (),
        create: bool = False,
    ) -> None:
        """`topics`: the delay and the progress topic, which must stay the same; `infos`: their
        descriptions when the node opened them. `letters`: topics that only have to exist; with
        `create` a missing one is created again. `others`: topics of which only the settings are
        checked, as that of the coordinator."""
        self._log = log_port
        self._topics = topics
        self._letters = letters
        self._create = create
        self._ids = {spec.name: infos[spec.name].id for spec in topics}
        self.leaders = infos[topics[0].name].leaders
        """The broker that leads each partition of the first topic, as of the last check; empty: not
        known."""
        self._missed: set[str] = set()
        """Letter topics that the last check did not find."""
        self.problem: str | None = None
        """Which letter topic is missing, and why it was not created; None while both are there."""
        self._failed = 0
        """Failed checks in a row."""
        self._others = others
        self._settings_ms = 0
        """When the settings of topics are checked again (epoch ms)."""
        self._advice: dict[str, tuple[str, ...]] = {}
        for name, info in infos.items():
            self._advise(name, info.advice)

    @property
    def advice(self) -> list[str]:
        """The settings of topics that are wrong or unwise, for people; the node goes on with
        them."""
        return [text for texts in self._advice.values() for text in texts]

    def step(self, now_ms: int) -> int:
        """Check once; return when to be called again. Raises LogMismatch or ConfigurationError when
        the topics have changed."""
        try:
            infos = self._log.describe([spec.name for spec in (*self._topics, *self._letters)])
            self._check_letters(infos)
            missing = [spec.name for spec in self._topics if infos[spec.name] is None]
            if not missing:
                own = {name: info for name, info in infos.items() if info is not None}
                self.leaders = own[self._topics[0].name].leaders
                is_due = not 0 < self._settings_ms - now_ms <= SETTINGS_EVERY_MS
                if is_due or self._has_grown(own):
                    own = self._log.prepare(self._topics, create=False)
                    for name, info in own.items():
                        self._advise(name, info.advice)
                self._compare(own)
                self._failed = 0
                if is_due:
                    self._settings_ms = now_ms + SETTINGS_EVERY_MS
                    self._check_settings()
                return now_ms + CHECK_EVERY_MS
        except Retry:
            return now_ms + CHECK_EVERY_MS  # the shards pause for the same reason and report it
        except ConfigurationError:
            # `prepare` makes requests of its own, and the broker that answers them may know less.
            self._failed += 1
            if self._failed >= FAILED_CHECKS:
                raise
            return now_ms + CHECK_EVERY_MS
        self._failed += 1
        if self._failed >= FAILED_CHECKS:
            raise LogMismatch(
                f"{' and '.join(missing)} is not there any more: it was deleted while Chronos "
                "used it, and its pending messages are gone from the log. To start anew, remove "
                "the data directory and both the delay and the progress topic."
            )
        return now_ms + CHECK_EVERY_MS

    def _has_grown(self, infos: Mapping[str, TopicInfo]) -> bool:
        """Return whether a topic with a partition for each shard has another number of them."""
        return any(
            spec.per_shard and infos[spec.name].partitions != spec.partitions
            for spec in self._topics
        )

    def _check_settings(self) -> None:
        """Check the settings of the letter topics and the others. A missing letter topic is
        reported by `_check_letters`."""
        specs = (*self._letters, *self._others)
        infos = self._log.describe([spec.name for spec in specs])
        for spec in specs:
            advice: tuple[str, ...] = ()
            if infos[spec.name] is not None:
                try:
                    advice = self._log.prepare([spec], create=False)[spec.name].advice
                except ConfigurationError as error:
                    advice = tuple(error.problems)
            self._advise(spec.name, advice)

    def _advise(self, name: str, advice: tuple[str, ...]) -> None:
        """Keep the advice about the settings of a topic, and log what is new in it."""
        for text in advice:
            if text not in self._advice.get(name, ()):
                log.warning("topic setting", why=text)
        self._advice[name] = advice

    def _check_letters(self, infos: Mapping[str, TopicInfo | None]) -> None:
        """Create a letter topic again that two checks in a row did not find."""
        missing = [spec for spec in self._letters if infos[spec.name] is None]
        again = [spec for spec in missing if spec.name in self._missed]
        self._missed = {spec.name for spec in missing}
        problems = []
        for spec in again:
            why = "topics.create is off"
            if self._create:
                try:
                    self._log.prepare([spec], create=True)
                    log.warning("topic created again", topic=spec.name)
                    continue
                except (ConfigurationError, Retry) as error:
                    why = str(error)
            problems.append(f"{spec.name} is missing, and Chronos cannot create it again: {why}")
        problem = "; ".join(problems) or None
        if problem is not None and problem != self.problem:
            log.error("topic missing", why=problem)
        self.problem = problem

    def _compare(self, infos: Mapping[str, TopicInfo]) -> None:
        """Raise LogMismatch if a topic is another one than at the start of the node."""
        for name, known in self._ids.items():
            if infos[name].id != known:
                raise LogMismatch(
                    f"{name} was deleted and created again while Chronos used it (its id was "
                    f"{known}, now it is {infos[name].id}), and its pending messages are gone "
                    "from the log. To start anew, remove the data directory and both the delay "
                    "and the progress topic."
                )
