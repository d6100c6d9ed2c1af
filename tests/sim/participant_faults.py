"""Faults planted in `core.cluster.participant` and the modules below it: the simulation of
participants must find each of them."""

from __future__ import annotations

from chronos.core.cluster.controllership import Controllership
from chronos.core.cluster.heartbeats import OwnHeartbeats, SeenIncarnations
from chronos.core.cluster.participant import Participant
from tests.sim.faults import Change

PARTICIPANT_FAULTS: dict[str, list[Change]] = {
    "a pause of the judge counts as silence of the others": [
        (OwnHeartbeats, "came_back", "if between_ms > self._timing.prompt_ms:", "if False:"),
        (
            OwnHeartbeats,
            "came_back",
            "if written_ms is None or before_ms is None or not (self._prompt and was_prompt):",
            "if written_ms is None or before_ms is None:",
        ),
        (SeenIncarnations, "passed", " and self._counted_ms >= self._timing.grace_ms", ""),
    ],
    "silence is counted by the time at which heartbeats come back": [
        (
            OwnHeartbeats,
            "came_back",
            "self._returned_ms = written_ms",
            "self._returned_ms = written_ms = now_ms",
        ),
        (OwnHeartbeats, "came_back", "if between_ms > self._timing.prompt_ms:", "if False:"),
        (SeenIncarnations, "heard", "known.silence.happened()", "known.silence.ms = 0"),
        (SeenIncarnations, "passed", " and self._counted_ms >= self._timing.grace_ms", ""),
    ],
    "the silence before a pause is kept, and there is no grace": [
        (SeenIncarnations, "passed", " and self._counted_ms >= self._timing.grace_ms", ""),
        (SeenIncarnations, "passed", "known.silence.restart()", "pass"),
        (OwnHeartbeats, "came_back", "if between_ms > self._timing.prompt_ms:", "if False:"),
    ],
    "the roles are not read again after fencing": [
        (
            Controllership,
            "fenced",
            "self._move(Stage.READING_AGAIN, now_ms)",
            "self._move(Stage.OPENING, now_ms)",
        ),
    ],
    "a fenced controller does not step down": [
        (Controllership, "failed", "self.restart()", "return"),
    ],
    "a controller that writes but does not read counts as heard": [
        (Controllership, "heartbeat", "if reads_on:", "if True:"),
    ],
    "a controller need not publish the version that it announces": [
        (Controllership, "passed", "self._unpublished.passed(ms)", "pass"),
    ],
    "a controller need not read the roles": [
        (Controllership, "passed", "self._lag.passed(ms)", "pass"),
    ],
    "a heartbeat of the last controller counts although it has stepped down": [
        (Controllership, "heartbeat", "heartbeat.controls < self.epoch or ", ""),
    ],
    "the last one of two newcomers wins": [
        (
            SeenIncarnations,
            "_of",
            "if generation > (0 if known is None else known.generation):",
            "if generation >= (1 if known is None else known.generation):",
        ),
    ],
    "a restarted process does not count instead of the one before": [
        (
            Participant,
            "_find_place",
            "max(0 if known is None else known.generation, self._start) + 1",
            "1",
        ),
    ],
    "a replaced process goes on": [
        (
            Participant,
            "_find_place",
            "elif known is not None and known.generation >= self._generation:",
            "elif False:",
        ),
    ],
    "an epoch that only heartbeats report is given out again": [
        (Controllership, "_move", "max(self.epoch, self.epoch_seen) + 1", "self.epoch + 1"),
    ],
    "a member that does not read the roles is present": [
        (SeenIncarnations, "passed", "known.lag.passed(ms)", "pass"),
    ],
}
