"""The transfer of the leadership to another node, on the side of the leader and of the transferee (DL-30 to DL-33)."""

from __future__ import annotations

from chronos.core.raft.state import State, Taking
from chronos.core.raft.values import (
    LogEnd,
    Role,
    TakeLeadership,
    TakeLeadershipResponse,
    Transfer,
    TransferEnded,
    TransferResult,
)


class TransferState(State, kw_only=True):
    """The state of a node, with transfers."""

    # ------------------------------------------------------------------------------------------------ transfer

    def _prefers_another(self) -> bool:
        return bool(self.preferred) and self.node not in self.preferred

    def _transfer_to_preferred(self) -> None:
        """Transfer to the preferred node that is alive and the least behind (DL-30)."""
        self.preferred_ms = self.now_ms + self.timing.preferred_ms
        alive_ms = self.now_ms - 2 * self.timing.heartbeat_ms
        lags = [
            (self._lag(end), peer)
            for peer, (at_ms, end) in self.ends.items()
            if peer in self.preferred and at_ms >= alive_ms
        ]
        if lags and min(lags)[0] < self.timing.transfer_lag_max:
            self._begin_transfer(min(lags)[1])

    def _lag(self, end: LogEnd) -> int:
        """How far a log end is behind this leader's; of an earlier epoch too far."""
        if end >= self.end:
            return 0
        return self.end.applied - end.applied if end.epoch == self.end.epoch else self.timing.transfer_lag_max

    def _begin_transfer(self, transferee: str) -> None:
        self.transferee = transferee
        self.transfer_until_ms = self.now_ms + self.timing.transfer_wait_ms + self.timing.heartbeat_ms
        self._send(TakeLeadership(sender=self.me, to=transferee, term=self.term, end=self.end))

    def _end_transfer(self, result: TransferResult) -> None:
        assert self.transferee is not None
        self.effects.append(TransferEnded(self.transferee, result))
        self.transferee = None

    def _on_transfer(self, transfer: Transfer) -> None:
        """Begin a transfer that an operator asked for, or refuse it; the order of the checks is DL-31's."""
        _, end = self.ends.get(transfer.transferee, (0, LogEnd()))
        refusals = {
            TransferResult.UNKNOWN_MEMBER: transfer.transferee not in self.peers or transfer.transferee == self.node,
            TransferResult.INCONSISTENT_TERM: transfer.term != self.term,
            TransferResult.NOT_LEADER: self.role is not Role.LEADER,
            TransferResult.LEADER_TRANSFERRING: self.transferee is not None,
            TransferResult.FALL_BEHIND_TOO_MUCH: self._lag(end) >= self.timing.transfer_lag_max,
        }
        refusal = next((result for result, applies in refusals.items() if applies), None)
        if refusal is not None:
            self.effects.append(TransferEnded(transfer.transferee, refusal))
        else:
            self._begin_transfer(transfer.transferee)

    def _on_take_leadership_response(self, response: TakeLeadershipResponse) -> None:
        """Note the end of a transfer; after a failure this leader may begin another one."""
        if response.incarnation != self.me.number:
            return
        if response.result is TransferResult.SUCCESS:
            self.effects.append(TransferEnded(response.sender, response.result))
        elif self.role is Role.LEADER and (response.sender, response.term) == (self.transferee, self.term):
            self._end_transfer(response.result)

    # ---------------------------------------------------------------------------------------------- transferee

    def _on_take_leadership(self, request: TakeLeadership) -> None:
        """Take the leadership over from the own leader, at once or when its log end is reached (DL-32)."""
        if self.role is not Role.FOLLOWER or self.leader != request.sender or self.taking is not None:
            self._answer_take_leadership(request, TransferResult.INCONSISTENT_LEADER)
        elif request.term != self.term:
            self._answer_take_leadership(request, TransferResult.INCONSISTENT_TERM)
        else:
            self.taking = Taking(request=request, until_ms=self.now_ms + self.timing.transfer_wait_ms)

    def _take_leadership(self, taking: Taking) -> None:
        """Become a candidate of the next term once the leader's log end is reached (DL-32)."""
        if self.end >= taking.request.end and self.now_ms <= taking.until_ms:
            self.taking = Taking(request=taking.request, until_ms=taking.until_ms, began=True)
            self._become_candidate(taking.term)
            self.increase_now = True

    def _end_taking(self) -> None:
        """Answer the former leader once the result is known (DL-33)."""
        assert self.taking is not None
        result = self._taking_result(self.taking)
        if result is not None:
            request, self.taking = self.taking.request, None
            self._answer_take_leadership(request, result)

    def _taking_result(self, taking: Taking) -> TransferResult | None:
        """Return the result of a transfer to this node; None: not known yet."""
        if self.term > taking.term:
            return TransferResult.EXPIRED_TERM
        if self.role is Role.LEADER and self.term == taking.term:
            return TransferResult.SUCCESS
        if not taking.began:
            waits = self.role is Role.FOLLOWER and self.now_ms <= taking.until_ms
            return None if waits else TransferResult.TAKE_LEADERSHIP_FAILED
        return None if self.role is Role.CANDIDATE else TransferResult.TAKE_LEADERSHIP_FAILED

    def _answer_take_leadership(self, request: TakeLeadership, result: TransferResult) -> None:
        sender = request.sender
        self._send(
            TakeLeadershipResponse(
                sender=self.node, to=sender.node, incarnation=sender.number, term=request.term, result=result
            )
        )
