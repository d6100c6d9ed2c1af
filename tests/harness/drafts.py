"""Plans of a step that stages nothing, as a master makes them."""

from chronos.core.shard.draft import Draft
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.step import Selection, Staged
from chronos.workers.step.planned import PlannedTransaction, StepInputs
from chronos.workers.step.push import Pusher


def drafted(selection: Selection, ahead: LookAhead[PlannedTransaction], now_ms: int) -> Draft:
    """The draft of a step at this time that settles the selection."""
    return Draft(
        staged=Staged(pull_offset=0, watermark_ms=0),
        selection=selection,
        fates=ahead.fates(selection, now_ms),
        now_ms=now_ms,
        until_ms=now_ms,
    )


def plan_of(
    pusher: Pusher,
    selection: Selection,
    inputs: StepInputs,
    ahead: LookAhead[PlannedTransaction],
) -> PlannedTransaction:
    """The plan of a step that settles the selection."""
    return pusher.plan(drafted(selection, ahead, inputs.now_ms), inputs, ahead)


def plan_next(
    pusher: Pusher,
    selection: Selection,
    inputs: StepInputs,
    ahead: LookAhead[PlannedTransaction],
) -> None:
    """Plan the selection ahead of its step."""
    fates = ahead.foretell(selection, inputs.now_ms)
    if fates is not None:
        pusher.plan_next(selection, fates, inputs, ahead)
