"""The failure of a message in its id state: reason, attempts, time and text of the last try, from the recorded decision.

Only messages with a decision have one. Every replica computes it from the progress record alone (law 9).
"""

from collections.abc import Mapping, Sequence

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


def fails_alike(one: Decision, other: Decision) -> bool:
    """Return whether two decisions of one step have equal failures."""
    return (
        one.outcome == other.outcome
        and one.reason == other.reason
        and one.detail == other.detail
        and one.attempt == other.attempt
    )


def dated(id_states: Mapping[bytes, IdState], timestamp_ms: int) -> dict[bytes, IdState]:
    """Return the id states of the decisions of one step whose progress record has this time (epoch ms)."""
    found: dict[bytes, IdState] = {}
    undated = failure = None
    for message_id, id_state in id_states.items():
        state = id_state.state
        if id_state.failure is None and state == PENDING:
            found[message_id] = id_state
            continue
        if id_state.failure is not undated:
            undated = failure = id_state.failure
            if undated is not None:
                failure = Failure(undated.reason, undated.attempts, timestamp_ms, undated.detail)
        settled_ms = 0 if state == PENDING else timestamp_ms
        found[message_id] = IdState(
            state, id_state.due_ms, id_state.offset, settled_ms, failure, id_state.first_ms, None, id_state.order
        )
    return found
