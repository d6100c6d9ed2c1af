"""The progress record of a step, made of its writer's identity, the staged changes, the selection
and the decisions; and its comparison with what a replica finds. `progress` has its format."""

from collections.abc import Sequence

from msgspec import Struct

from chronos.core.shard.lanes import cursors
from chronos.core.shard.progress import Decision, Progress, count_outcomes
from chronos.core.shard.queues import holds, written
from chronos.core.shard.step import Selection, Staged
from chronos.errors import LogMismatch


class WriterEpoch(Struct, frozen=True, kw_only=True):
    """The fields of a progress record that name its writer."""

    cluster: str
    node: str
    instance: str
    shards: int
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
        zone_data: str = "",
    ) -> Progress:
        """Return the progress record of a step; `details`: the texts that decisions give by number.

        `held_forwards`: number of held records that wait for another partition before this step.
        `zone_data`: `Progress.zone_data`.
        """
        texts = list(details)
        held = holds(staged.letters.held, texts)
        return Progress(
            role_epoch=self.role_epoch,
            log_epoch=self.log_epoch,
            cluster=self.cluster,
            node=self.node,
            instance=self.instance,
            shards=self.shards,
            cursor_due_ms=selection.cursor[0],
            cursor_offset=selection.cursor[1],
            pull_offset=staged.pull_offset,
            counts=count_outcomes(len(selection.items), decisions),
            refused=tuple(staged.letters.refused),
            decisions=tuple(decisions),
            probes=staged.probes,
            unreadable=tuple(staged.unreadable),
            lanes=cursors(selection.leaving),
            details=tuple(texts),
            horizon_ms=staged.horizon_ms,
            held=held,
            written=written(staged.letters.written),
            held_forwards=held_forwards + staged.letters.held_forwards,
            replans=tuple(staged.zones.replans),
            zone_data=zone_data,
        )


def check_record(
    progress: Progress,
    offset: int,
    staged: Staged,
    selection: Selection,
    shard: int,
    *,
    held_forwards: int,
) -> None:
    """Raise LogMismatch unless a replica finds exactly what the master recorded in the progress
    record at this offset. `held_forwards`: see `WriterEpoch.progress`."""
    unselected = 0
    if progress.decisions:
        selected = {source: due_ms for due_ms, source, _ in selection.items}
        unselected = sum(
            [selected.get(decision.offset) != decision.due_ms for decision in progress.decisions]
        )
    outcomes = count_outcomes(len(selection.items), progress.decisions)
    for subject, recorded, own in (
        ("settled messages", progress.selected, len(selection.items)),
        ("their outcomes", progress.counts, outcomes),
        ("the pull offset", progress.pull_offset, staged.pull_offset),
        ("refused records", len(progress.refused), len(staged.letters.refused)),
        ("queues written on", len(progress.written), len(staged.letters.written)),
        ("records held", len(progress.held), len(staged.letters.held)),
        (
            "held records for other partitions",
            progress.held_forwards,
            held_forwards + staged.letters.held_forwards,
        ),
        ("ranges that cannot be read", list(progress.unreadable), staged.unreadable),
        ("decisions about messages that were not selected", 0, unselected),
    ):
        if recorded != own:
            raise LogMismatch(
                f"shard {shard}: the progress record at offset {offset} records {recorded} for "
                f"{subject}, this replica finds {own}. Its store or its logs are not those of the "
                "master: remove the shard's store to rebuild it from the logs."
            )
