"""Faults planted in `core.cluster.kafka.participant` and the modules below it: the simulation of
participants must find each of them."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

PARTICIPANT_FAULTS: Faults = {
    "a pause of the judge counts as silence of the others": [
        Change("if between_ms > self._timing.prompt_ms:", "if False:"),
        Change(
            "if written_ms is None or before_ms is None or not (self._prompt and was_prompt):",
            "if written_ms is None or before_ms is None:",
        ),
        Change(" and self._counted_ms >= self._timing.grace_ms", "", "passed"),
    ],
    "silence is counted by the time at which heartbeats come back": [
        Change("self._returned_ms = written_ms", "self._returned_ms = written_ms = now_ms"),
        Change("if between_ms > self._timing.prompt_ms:", "if False:"),
        Change("known.silence.happened()", "known.silence.ms = 0"),
        Change(" and self._counted_ms >= self._timing.grace_ms", "", "passed"),
    ],
    "the silence before a pause is kept, and there is no grace": [
        Change(" and self._counted_ms >= self._timing.grace_ms", "", "passed"),
        Change("known.silence.restart()", "pass"),
        Change("if between_ms > self._timing.prompt_ms:", "if False:"),
    ],
    "the roles are not read again after fencing": [
        Change("self._move(Stage.READING_AGAIN, now_ms)", "self._move(Stage.OPENING, now_ms)")
    ],
    "a fenced controller does not step down": [Change("self.restart()", "return", "failed")],
    "a controller that writes but does not read counts as heard": [
        Change("if reads_on:", "if True:", "heartbeat")
    ],
    "a controller need not publish the version that it announces": [
        Change("self._unpublished.passed(ms)", "pass")
    ],
    "a controller need not read the roles": [Change("self._lag.passed(ms)", "pass")],
    "a heartbeat of the last controller counts although it has stepped down": [
        Change("heartbeat.controls < self.epoch or ", "")
    ],
    "the last one of two newcomers wins": [
        Change(
            "if generation > (0 if known is None else known.generation):",
            "if generation >= (1 if known is None else known.generation):",
        )
    ],
    "a restarted process does not count instead of the one before": [
        Change("max(0 if known is None else known.generation, self._start) + 1", "1")
    ],
    "a replaced process goes on": [
        Change("elif known is not None and known.generation >= self._generation:", "elif False:")
    ],
    "an epoch that only heartbeats report is given out again": [
        Change("max(self.epoch, self.epoch_seen) + 1", "self.epoch + 1")
    ],
    "a member that does not read the roles is present": [Change("known.lag.passed(ms)", "pass")],
}
