"""The failure of a message in its id state: reason, attempts, time and text of the last try, from the recorded decision.

Only messages with a decision have one. Every replica computes it from the progress record alone (law 9).
"""

from collections.abc import Sequence

from chronos.core.codec import PENDING, Failure, IdState
from chronos.core.progress import Decision, Outcome


def failure_of(decision: Decision, details: Sequence[str]) -> Failure | None:
    """Return the failure that the decision records, without its time; None if it names no reason. `details`: `Progress.details`."""
    if not decision.reason:
        return None
    # A dead message has used its last attempt; for any other one the decision has the number of the attempt that comes next.
    attempts = decision.attempt - (decision.outcome is not Outcome.DEAD)
    detail = details[decision.detail - 1] if 0 < decision.detail <= len(details) else ""
    return Failure(decision.reason, attempts, 0, detail)


def dated(id_state: IdState, timestamp_ms: int) -> IdState:
    """Return the id state of a decision whose progress record has this time (epoch ms)."""
    failure = id_state.failure
    if failure is None and id_state.state == PENDING:
        return id_state
    if failure is not None:
        failure = Failure(failure.reason, failure.attempts, timestamp_ms, failure.detail)
    settled_ms = 0 if id_state.state == PENDING else timestamp_ms
    return IdState(id_state.state, id_state.due_ms, id_state.offset, settled_ms, failure)
