"""The progress records of one leadership: the decisions of each step under the name of their writer."""

from collections.abc import Sequence

from msgspec import Struct

from chronos.core.lanes import cursors
from chronos.core.progress import Decision, Progress, count_outcomes
from chronos.core.queues import holds, written
from chronos.core.step import Selection, Staged


class WriterEpoch(Struct, frozen=True, kw_only=True):
    """The part of a progress record that names its writer."""

    cluster: str
    node: str
    instance: str
    role_epoch: int
    log_epoch: int

    def progress(
        self,
        staged: Staged,
        selection: Selection,
        decisions: Sequence[Decision] = (),
        details: Sequence[str] = (),
        *,
        held_forwards: int = 0,
    ) -> Progress:
        """Return the progress record of a step; `details`: the texts that the decisions number.

        `held_forwards`: held records that wait for another partition before this step.
        """
        texts = list(details)
        held = holds(staged.held, texts)
        return Progress(
            role_epoch=self.role_epoch,
            log_epoch=self.log_epoch,
            cluster=self.cluster,
            node=self.node,
            instance=self.instance,
            cursor_due_ms=selection.cursor[0],
            cursor_offset=selection.cursor[1],
            pull_offset=staged.pull_offset,
            counts=count_outcomes(len(selection.items), decisions),
            refused=tuple(staged.refused),
            decisions=tuple(decisions),
            probes=staged.probes,
            unreadable=tuple(staged.unreadable),
            lanes=cursors(selection.leaving),
            details=tuple(texts),
            rules=staged.rules,
            horizon_ms=staged.horizon_ms,
            held=held,
            written=written(staged.written),
            held_forwards=held_forwards + staged.held_forwards,
        )
