"""Membership and the controller on Kafka itself, over the topic `chronos.cluster`
(`ports.Coordinator`).

There are no sessions: a node that was silent is a member again with its next heartbeat, and goes on
reading its roles meanwhile where it can. A node that was replaced by another process of its name
has no place any more, and does not join again."""

import threading
import time
from collections.abc import Callable

from chronos.adapters.kafka.cluster.loop import POLL_S, ClusterLoop
from chronos.adapters.kafka.cluster.topic import ClusterTopic
from chronos.adapters.kafka.connection import Connection
from chronos.core.cluster.kafka.participant import STOPPED, Participant, Place
from chronos.core.cluster.kafka.records import Submission
from chronos.core.cluster.roles import (
    ClusterState,
    Member,
    Request,
    Roles,
    id_taken,
)
from chronos.core.cluster.timing import Timing
from chronos.errors import ChronosError, CoordinatorUnavailable, LogUnavailable
from chronos.ports import ClusterSnapshot, TopicSpec

ANSWER_S = 2.0
"""Longest wait for a request or a publication; healthy brokers take some tens of milliseconds."""

JOIN_S = 5.0
"""How long `join` waits without a sign of life of the brokers."""


class KafkaCoordinator:
    """One node's membership in a cluster. See `ports.Coordinator`. Any thread may call `look` and
    `request`, one the other verbs."""

    def __init__(
        self,
        connection: Connection,
        topic: TopicSpec,
        *,
        create_topic: bool,
        cluster: str,
        node: str,
        timing: Timing | None = None,
        transaction_timeout_s: float = 10.0,
    ) -> None:
        """Only `join` connects."""
        self._connection = connection
        self._spec = topic
        self._create_topic = create_topic
        self.timing = timing or Timing()
        self._cluster = cluster
        self._node = node
        self._transaction_timeout_s = transaction_timeout_s
        self._woken = threading.Event()
        self._loop: ClusterLoop | None = None
        self._replaced = False
        """A later process of this node counts."""
        self._holder: Member | None = None
        """That process, as it reports."""

    # --- the port

    def join(self, member: Member) -> None:
        """Register this node as a new incarnation. Raises NodeIdTaken, CoordinatorUnavailable,
        ConfigurationError."""
        self._end()
        if self._replaced:
            raise id_taken(self._node, self._cluster, self._holder)
        topic = self.topic()
        try:
            topic.open()
            reader = topic.reader()
        except LogUnavailable as error:
            topic.close()
            raise CoordinatorUnavailable(self._unanswered(str(error))) from error
        except ChronosError:
            topic.close()
            raise
        loop = ClusterLoop(
            topic, reader, member, self.timing, self._transaction_timeout_s, self._woken
        )
        try:
            self._wait_for_place(loop)
        except BaseException:
            loop.end()
            raise
        self._loop = loop

    def report(self, member: Member) -> None:
        """Publish this node's state with the next heartbeat. Raises CoordinatorUnavailable."""
        loop = self._joined()
        loop.report(member)
        if not loop.seen:
            raise CoordinatorUnavailable(self._unanswered(loop.problem))

    def look(self) -> ClusterSnapshot:
        loop = self._loop
        if loop is None or loop.lost:
            return ClusterSnapshot(roles=None, members={}, confirmed=False)
        return ClusterSnapshot(roles=loop.roles, members=loop.members, confirmed=loop.confirmed)

    def request(self, request: Request) -> None:
        loop = self._joined()
        why = loop.write(Submission(request=request), ANSWER_S)
        if why is not None:
            raise CoordinatorUnavailable(self._unanswered(why))

    def control(self, plan: Callable[[ClusterState], Roles]) -> bool:
        loop = self._loop
        if loop is None or loop.lost:
            return False
        return loop.control(
            lambda participant, requests: plan(self._state_of(loop, participant, requests)),
            ANSWER_S,
        )

    def wait(self, timeout_s: float) -> bool:
        woken = self._woken.wait(timeout_s)
        self._woken.clear()
        return woken

    def leave(self) -> None:
        """Write a leave record, so that other nodes need not wait."""
        loop = self._loop
        if loop is not None:
            loop.leave_record()
        self._end()
        self._replaced = False

    def topic(self) -> ClusterTopic:
        """Return the topic of the cluster; no request is made before it is used."""
        return ClusterTopic(self._connection, self._spec, create=self._create_topic)

    # --- inside

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            if loop.place is Place.REPLACED:
                self._replaced, self._holder = True, loop.holder
            loop.end()

    def _joined(self) -> ClusterLoop:
        loop = self._loop
        if loop is None or loop.lost:
            raise CoordinatorUnavailable(
                "this node is not a member of the cluster; it has to join again"
            )
        return loop

    def _wait_for_place(self, loop: ClusterLoop) -> None:
        answered_s, returned = time.monotonic(), 0
        while not loop.settled:
            if loop.place in STOPPED:
                raise id_taken(self._node, self._cluster, loop.holder)
            if loop.returned != returned:
                answered_s, returned = time.monotonic(), loop.returned
            if time.monotonic() - answered_s > JOIN_S or loop.ended:
                raise CoordinatorUnavailable(self._unanswered(loop.problem))
            time.sleep(POLL_S)

    def _unanswered(self, why: str) -> str:
        text = (
            f"no Kafka broker of {self._connection.bootstrap_servers} answers for {self._spec.name}"
        )
        return f"{text}: {why}" if why else text

    def _state_of(
        self, loop: ClusterLoop, participant: Participant, requests: tuple[Request, ...]
    ) -> ClusterState:
        return ClusterState(
            now_ms=loop.wall_ms(),
            controller=self._node,
            controller_epoch=participant.control.epoch,
            members=loop.members,
            since_ms=loop.since_ms,
            roles=participant.roles or Roles(),
            requests=requests,
        )
