"""The names of decided outcomes in the table `decisions`: for ever, because archives hold them."""

from chronos.core.progress import Outcome

OUTCOMES = {
    Outcome.AGAIN: "again", Outcome.RETRY: "retry", Outcome.DEFERRED: "deferred", Outcome.SKIPPED: "skipped",
    Outcome.EXPIRED: "expired", Outcome.DEAD: "dead-letter", Outcome.PARKED: "parked",
}  # fmt: skip
"""Name of each outcome that a progress record lists; plain deliveries are not listed."""

LEFT_LANE = "left-lane"
"""Name of the rows that hold the cursors of lanes: every message parked in the lane before, up to this position, left it."""

WRITTEN_ON = "written-on"
"""Name of the rows that hold the ends of what left queues of held records: every record held for the destination, up to this offset,
was written to it in the transaction of the step, but for those that the same step refuses."""
