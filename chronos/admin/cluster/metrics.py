"""The metrics of a node in the format of Prometheus, for `/metrics`.

The values are read at each scrape, only end offsets and store sizes may be up to FRESH_S old.
`METRICS`, `COUNTS`, `NODE_METRICS` and `BROKER_METRICS` list all metrics of Chronos;
`docs/reference/metrics.md` is made from the lists. The metrics of the process (memory, garbage
collector) are those of `prometheus_client`."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from chronos import __version__, zones
from chronos.admin.archive.status import ARCHIVE_METRICS
from chronos.admin.http.context import Context
from chronos.admin.http.issuer import Issuer
from chronos.core.keys import LIMITED
from chronos.core.query.pages import next_place_ms
from chronos.core.selector import NO_LEADER
from chronos.core.shard.lanes import read_lanes
from chronos.errors import ChronosError
from chronos.node.histogram import Histogram
from chronos.node.outcomes import TARGETS_SHOWN, Outcomes
from chronos.node.shards import ShardDriver

CONTENT_TYPE = CONTENT_TYPE_LATEST

FRESH_S = 1.0
"""How old end offsets and store sizes of a scrape may be, so that many scrapes query the broker
once."""

Read = Callable[[Context, ShardDriver], float | None]
"""A value of one shard; None if it is not known at the moment: the sample is left out."""

LANES_SHOWN = 20
"""Topics of `chronos_lane_messages` with a sample of their own, those with the most messages."""

OTHER = "other"
"""Label of all other topics together."""

CERTIFICATES_STALE = (
    "chronos_certificates_stale",
    "gauge",
    "1 if the files of `admin.tls` have changed and cannot be used: those of before stay in force.",
)
JWKS_STALE = (
    "chronos_jwks_stale",
    "gauge",
    "1 if the keys in `admin.jwt.jwks` cannot be read: those of before stay in force.",
)

NODE_METRICS: tuple[tuple[str, str, str], ...] = (
    ("chronos_build_info", "info", "Version, zone data, node, cluster and kind of log, as labels."),
    ("chronos_disk_free_bytes", "gauge", "Free space on the disk of the data directory."),
    (
        "chronos_disk_reserve_bytes",
        "gauge",
        "`limits.disk_reserve`: with less free space every shard of the node is paused.",
    ),
    ("chronos_ready", "gauge", "1 if the node is ready (`/readyz`)."),
    (
        "chronos_clients_abandoned_total",
        "counter",
        (
            "Consumers that did not close within 10 s, a fault of the Kafka client: each keeps "
            "its threads and connections until the process ends."
        ),
    ),
    CERTIFICATES_STALE,
    JWKS_STALE,
    (
        "chronos_tokens_stale",
        "gauge",
        (
            "1 if the file of tokens has changed and cannot be used: the tokens of before stay in "
            "force."
        ),
    ),
    (
        "chronos_lane_messages",
        "gauge",
        "Messages that are due and wait in lanes, in the shards this node is master of, by the "
        f"label `topic`: the 20 topics with the most, and `{OTHER}`.",
    ),
    (
        "chronos_no_leader_seconds",
        "gauge",
        "For how long the first message in a lane of the topic that no rate keeps has been due, in "
        "the shards this node is master of, by the label `topic`: its partition has no leader, or "
        f"too few replicas in sync, or the topic cannot be created; the 20 longest, and `{OTHER}`.",
    ),
    (
        "chronos_audit_failing",
        "gauge",
        (
            "1 while entries of the audit trail cannot be written; with `audit.required`, "
            "requests are refused meanwhile."
        ),
    ),
    (
        "chronos_audit_lost_total",
        "counter",
        "Entries of the audit trail that could not be written, and are not tried again.",
    ),
)
"""Metrics of the node; only that of the lanes has a label."""

BROKER_METRICS: tuple[tuple[str, str, str], ...] = (
    (
        "chronos_broker_latency_seconds",
        "gauge",
        (
            "Time from sending a record to its acknowledgement by the broker, last measured; 30 "
            "if that failed."
        ),
    ),
    (
        "chronos_broker_unavailable_seconds",
        "gauge",
        "For how long messages without a key still avoid the broker; 0: they do not.",
    ),
    (
        "chronos_hops_ahead_total",
        "counter",
        "Forwarded records whose first timestamp, by the clock of `broker`, was more than 0.5 s "
        "ahead of the clock of `home_broker`, which leads the partition of their id: one of the "
        "two clocks is wrong. Their own timestamp counts instead. The brokers are those that led "
        "the partitions then; two that lead now are there from the start.",
    ),
)
"""Metrics with the label `broker`: the first two of the brokers that this node has sent messages
to."""


@dataclass(frozen=True, kw_only=True)
class ShardMetric:
    """One metric with the label `shard`."""

    name: str
    kind: str  #: counter, gauge or histogram
    meaning: str
    read: Read | None = None
    histogram: Callable[[ShardDriver], Histogram] | None = None


def _total(name: str, meaning: str, field: str) -> ShardMetric:
    return ShardMetric(
        name=f"chronos_messages_{name}_total",
        kind="counter",
        meaning=meaning,
        read=lambda _, shard: float(getattr(shard.state.totals, field)),
    )


def _overdue_s(context: Context, shard: ShardDriver) -> float | None:
    try:
        next_ms = next_place_ms(shard.store, shard.state)
    except ChronosError:
        return None
    return 0.0 if next_ms is None else max(0, context.now_ms() - next_ms) / 1_000


def _lag(context: Context, shard: ShardDriver) -> float | None:
    lag = context.lag(shard.number)
    return None if lag is None else float(lag)


def _held_back(context: Context, shard: ShardDriver) -> tuple[float, float]:
    """Records held back, and for how many seconds."""
    found = context.node.open_transactions.held_back(shard.number)
    return (
        (0.0, 0.0)
        if found is None
        else (found.records, max(0, context.now_ms() - found.since_ms) / 1_000)
    )


def _unhealthy(context: Context, shard: ShardDriver) -> float | None:
    verdict = context.node.verdict(shard.number)
    return None if verdict is None else float(not verdict.healthy)


def _in_sync(context: Context, shard: ShardDriver) -> float | None:
    watch = context.node.in_sync
    return None if watch is None else float(len(watch.followers(shard.number)))


def _in_sync_missing(context: Context, shard: ShardDriver) -> float | None:
    watch = context.node.in_sync
    return None if watch is None else float(watch.missing(shard.number))


METRICS: tuple[ShardMetric, ...] = (
    _total("accepted", "Messages accepted.", "accepted"),
    _total("delivered", "Messages delivered.", "delivered"),
    _total("rejected", "Records rejected, sent to the rejected topic.", "rejected"),
    _total("dead", "Messages dead-lettered for a reason other than expiry.", "dead"),
    _total("expired", "Messages expired, sent to the dead-letter topic.", "expired"),
    _total("cancelled", "Messages cancelled.", "cancelled"),
    _total("replaced", "Messages replaced by another one with the same id.", "replaced"),
    _total("changed", "Messages rescheduled or fired by an action.", "changed"),
    _total(
        "carried",
        "Times a message stayed pending with a new due time: a retry or a deferral.",
        "carried",
    ),
    _total(
        "parked",
        (
            "Times a message was parked, because its partition had no leader or the rate of its "
            "target was used up when it was due."
        ),
        "parked",
    ),
    _total(
        "forwarded", "Records written on to the partition that their id belongs to.", "forwarded"
    ),
    _total(
        "held",
        (
            "Records that had to wait to be forwarded or rejected; they count as such when they "
            "are written on."
        ),
        "held",
    ),
    _total(
        "ignored",
        (
            "Records dropped without effect: a message with `ignore` whose id is taken, an upsert "
            "of what is pending, a cancel of a cancelled message, or a repeated call."
        ),
        "ignored",
    ),
    ShardMetric(
        name="chronos_pending_messages",
        kind="gauge",
        meaning="Messages accepted and not settled yet.",
        read=lambda _, shard: shard.state.pending,
    ),
    ShardMetric(
        name="chronos_parked_messages",
        kind="gauge",
        meaning=(
            "Pending messages that are due and wait until their partition has a leader, or the "
            "rate of their target allows them."
        ),
        read=lambda _, shard: shard.state.parked,
    ),
    ShardMetric(
        name="chronos_held_records",
        kind="gauge",
        meaning=(
            "Records that wait to be forwarded or rejected, because the partition of their id, or "
            "the rejected topic, takes none."
        ),
        read=lambda _, shard: shard.state.held,
    ),
    ShardMetric(
        name="chronos_oldest_overdue_seconds",
        kind="gauge",
        meaning=(
            "How long the first pending message that is not parked is overdue; 0 when none is. "
            "The most important metric to alert on."
        ),
        read=_overdue_s,
    ),
    ShardMetric(
        name="chronos_lateness_seconds",
        kind="histogram",
        meaning="Delivered minus due, of delivered messages.",
        histogram=lambda shard: shard.lateness,
    ),
    ShardMetric(
        name="chronos_step_seconds",
        kind="histogram",
        meaning="Duration of the steps that committed something.",
        histogram=lambda shard: shard.steps,
    ),
    ShardMetric(
        name="chronos_transactions_committed_total",
        kind="counter",
        meaning="Transactions with messages or records in them.",
        read=lambda _, shard: shard.commits,
    ),
    ShardMetric(
        name="chronos_transactions_aborted_total",
        kind="counter",
        meaning="Transactions aborted, or lost with their producer.",
        read=lambda _, shard: shard.aborts,
    ),
    ShardMetric(
        name="chronos_quota_bytes_per_second",
        kind="gauge",
        meaning=(
            "Bytes a second to which a quota of the brokers slows the deliveries of the shard "
            "down; 0 while none does."
        ),
        read=lambda _, shard: shard.replica.quota_rate,
    ),
    ShardMetric(
        name="chronos_pull_lag_records",
        kind="gauge",
        meaning=(
            "Records in the delay topic that are not applied yet, transaction markers between "
            "them and records that an open transaction holds back included; absent while the log "
            "does not answer."
        ),
        read=_lag,
    ),
    ShardMetric(
        name="chronos_held_back_records",
        kind="gauge",
        meaning=(
            "Records in the delay topic that a producer's open transaction has held back for more "
            "than 1 s; 0 on a node that is not master."
        ),
        read=lambda context, shard: _held_back(context, shard)[0],
    ),
    ShardMetric(
        name="chronos_held_back_seconds",
        kind="gauge",
        meaning="How long that transaction has been open; 0 when there is none.",
        read=lambda context, shard: _held_back(context, shard)[1],
    ),
    ShardMetric(
        name="chronos_cursor_timestamp_seconds",
        kind="gauge",
        meaning="Time up to which everything is settled, as Unix time.",
        read=lambda _, shard: shard.state.cursor_due_ms / 1_000,
    ),
    ShardMetric(
        name="chronos_progress_timestamp_seconds",
        kind="gauge",
        meaning=(
            "When the shard last committed, as Unix time. A healthy shard commits at least once a "
            "minute."
        ),
        read=lambda _, shard: shard.state.progress_ms / 1_000,
    ),
    ShardMetric(
        name="chronos_master",
        kind="gauge",
        meaning="1 if this node is master of the shard.",
        read=lambda _, shard: shard.role == "master",
    ),
    ShardMetric(
        name="chronos_paused",
        kind="gauge",
        meaning="1 while the shard is paused; `/v1/shards` has the reason.",
        read=lambda _, shard: shard.paused is not None,
    ),
    ShardMetric(
        name="chronos_stalled_seconds",
        kind="gauge",
        meaning=(
            "How long the shard has stood still although messages are due or records can be read, "
            "from 30 s on; 0 while it moves."
        ),
        read=lambda _, shard: shard.stall.ms / 1_000,
    ),
    ShardMetric(
        name="chronos_stalls_total",
        kind="counter",
        meaning="How often the shard stood still for 30 s or more, since the process started.",
        read=lambda _, shard: shard.stall.count,
    ),
    ShardMetric(
        name="chronos_master_unhealthy",
        kind="gauge",
        meaning=(
            "1 while this node's probes find the shard's master unhealthy, 0 while they find it "
            "healthy; not there without observations, as with `failover.on_unhealthy: off`."
        ),
        read=_unhealthy,
    ),
    ShardMetric(
        name="chronos_in_sync_replicas",
        kind="gauge",
        meaning=(
            "Followers of the shard that are in sync, the master not counted, as this node sees "
            "them; not there on a standalone node. A node that was just started may count others "
            "for up to 10 s."
        ),
        read=_in_sync,
    ),
    ShardMetric(
        name="chronos_in_sync_missing",
        kind="gauge",
        meaning=(
            "Followers in sync that the shard has less than `replication.min_in_sync`, as this "
            "node sees it; 0 unless `replication.mode` is `sync`; not there on a standalone node."
        ),
        read=_in_sync_missing,
    ),
    ShardMetric(
        name="chronos_epoch",
        kind="gauge",
        meaning="Epoch of the last master in the progress log.",
        read=lambda _, shard: shard.state.log_epoch,
    ),
    ShardMetric(
        name="chronos_store_bytes",
        kind="gauge",
        meaning="Size of the store on disk.",
        read=lambda context, shard: context.store_bytes(shard.number),
    ),
)
"""Every metric with the label `shard`."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """A counter of the node's own steps with one label, counted from the start of the process."""

    name: str
    label: str
    meaning: str
    read: Callable[[Outcomes], Mapping[str, int]]


def _by_target(field: str) -> Callable[[Outcomes], Mapping[str, int]]:
    return lambda outcomes: {
        target: getattr(row, field) for target, row in outcomes.by_target().items()
    }


COUNTS: tuple[Count, ...] = (
    Count(
        name="chronos_dead_letters_total",
        label="reason",
        meaning="Dead letters by reason, those of expired messages included.",
        read=lambda outcomes: {
            reason.label: count for reason, count in outcomes.by_reason()[0].items()
        },
    ),
    Count(
        name="chronos_rejections_total",
        label="reason",
        meaning="Records rejected by reason.",
        read=lambda outcomes: {
            reason.label: count for reason, count in outcomes.by_reason()[1].items()
        },
    ),
    Count(
        name="chronos_target_delivered_total",
        label="target",
        meaning="Messages delivered to a target topic.",
        read=_by_target("delivered"),
    ),
    Count(
        name="chronos_target_late_total",
        label="target",
        meaning="Those of them that were delivered more than 1 s after they were due.",
        read=_by_target("late"),
    ),
    Count(
        name="chronos_target_dead_letters_total",
        label="target",
        meaning="Dead letters of messages for a target topic, those of expired messages included.",
        read=_by_target("dead"),
    ),
)
"""Every metric with the label `reason` or `target`."""


def _named(name: str) -> tuple[str, str]:
    """Name and meaning of a metric of the node."""
    return next((each, meaning) for each, _, meaning in NODE_METRICS if each == name)


class Exposition(Collector):
    """Reads all values from the node at each scrape."""

    def __init__(self, context: Context, issuer: Issuer | None = None) -> None:
        self._context = context
        self._issuer = issuer
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def text(self) -> bytes:
        """The answer of a scrape."""
        await self._context.refresh(FRESH_S)
        return await self._context.in_thread(generate_latest, self._registry)

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: a collector that is registered once needs no check for
        duplicates."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all families of metrics."""
        config = self._context.node.config
        yield InfoMetricFamily(
            "chronos_build",
            NODE_METRICS[0][2],
            {
                "version": __version__,
                "zone_data": zones.VERSION,
                "node": config.node.id,
                "cluster": config.cluster,
                "log": config.log.kind,
            },
        )
        yield GaugeMetricFamily(
            *_named("chronos_disk_free_bytes"), value=self._context.node.disk_free_bytes()
        )
        yield GaugeMetricFamily(
            *_named("chronos_disk_reserve_bytes"), value=config.limits.disk_reserve
        )
        yield GaugeMetricFamily(*_named("chronos_ready"), value=not self._context.reasons())
        yield CounterMetricFamily(
            *_named("chronos_clients_abandoned_total"), value=self._context.node.clients_abandoned
        )
        yield GaugeMetricFamily(*CERTIFICATES_STALE[::2], value=self._context.node.tls.is_stale)
        yield GaugeMetricFamily(
            *JWKS_STALE[::2], value=self._issuer is not None and self._issuer.is_stale
        )
        tokens = self._context.tokens
        stale = tokens is not None and tokens.problem is not None
        yield GaugeMetricFamily(*_named("chronos_tokens_stale"), value=stale)
        yield from self._lanes()
        yield GaugeMetricFamily(
            *_named("chronos_audit_failing"), value=self._context.trail.problem is not None
        )
        yield CounterMetricFamily(
            *_named("chronos_audit_lost_total"), value=self._context.trail.lost
        )
        yield from self._brokers()
        for series in METRICS:
            yield self._family(series)
        for count in COUNTS:
            family = CounterMetricFamily(count.name, count.meaning, labels=[count.label])
            for value, total in count.read(self._context.node.outcomes).items():
                family.add_metric([value], total)
            yield family

    def _brokers(self) -> Iterator[Metric]:
        now_ms = self._context.now_ms()
        latency, unavailable = (
            GaugeMetricFamily(*metric[::2], labels=["broker"]) for metric in BROKER_METRICS[:2]
        )
        for broker, found in sorted(self._context.node.selector.brokers().items()):
            latency.add_metric([str(broker)], found.latency_ms / 1_000)
            left_ms = 0 if found.is_available(now_ms) else found.available_ms - now_ms
            unavailable.add_metric([str(broker)], left_ms / 1_000)
        yield from (latency, unavailable)
        ahead = CounterMetricFamily(*BROKER_METRICS[2][::2], labels=["broker", "home_broker"])
        for pair, count in sorted(self._context.node.outcomes.hops_ahead().items()):
            ahead.add_metric(
                ["unknown" if broker == NO_LEADER else str(broker) for broker in pair], count
            )
        yield ahead

    def _lanes(self) -> Iterator[Metric]:
        """The messages in lanes, and how long the first of them have waited for a leader, by
        topic."""
        now_ms = self._context.now_ms()
        topics: Counter[str] = Counter()
        no_leader_ms: Counter[str] = Counter()
        for shard in self._context.shards:
            if shard.role != "master":
                continue
            try:
                states = read_lanes(shard.store, shard.state.parked)
            except ChronosError:
                continue
            for (topic, partition), state in states.items():
                topics[topic] += state.length
                if partition != LIMITED:
                    no_leader_ms[topic] = max(no_leader_ms[topic], now_ms - state.due_ms)
        family = GaugeMetricFamily(*_named("chronos_lane_messages"), labels=["topic"])
        for topic, messages in topics.most_common(LANES_SHOWN):
            family.add_metric([topic], messages)
        others = sum(messages for _, messages in topics.most_common()[LANES_SHOWN:])
        family.add_metric([OTHER], others)
        yield family
        family = GaugeMetricFamily(*_named("chronos_no_leader_seconds"), labels=["topic"])
        longest = no_leader_ms.most_common()
        rest_ms = max((waited_ms for _, waited_ms in longest[LANES_SHOWN:]), default=0)
        for topic, waited_ms in [*longest[:LANES_SHOWN], (OTHER, rest_ms)]:
            family.add_metric([topic], waited_ms / 1_000)
        yield family

    def _family(self, series: ShardMetric) -> Metric:
        if series.histogram is not None:
            histograms = HistogramMetricFamily(series.name, series.meaning, labels=["shard"])
            for shard in self._context.shards:
                buckets, sum_s = cumulative(series.histogram(shard))
                histograms.add_metric([str(shard.number)], buckets, sum_s)
            return histograms
        assert series.read is not None
        kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
        family = kind(series.name, series.meaning, labels=["shard"])
        for shard in self._context.shards:
            value = series.read(self._context, shard)
            if value is not None:
                family.add_metric([str(shard.number)], float(value))
        return family


def cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets `(bound in seconds, count of values at or below it)`, and the sum in
    seconds."""
    running = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds_s), "+Inf"), histogram.counts, strict=True):
        running += count
        buckets.append((bound, running))
    return buckets, histogram.sum_s


def reference() -> str:
    """`docs/reference/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        (
            "<!-- Made by `python -m chronos.admin metrics`; change "
            "`chronos/admin/cluster/metrics.py` instead. -->"
        ),
        "",
        (
            "`GET /metrics` answers in Prometheus's text format. Units are seconds and bytes. "
            "Totals count since the shard"
        ),
        (
            "began: they survive restarts and belong to the shard, not to the process. Histograms "
            "and transactions"
        ),
        (
            "count since the process started. The usual `process_*` and `python_*` metrics are "
            "there as well."
        ),
        "",
        "## Metrics of a shard (label `shard`)",
        "",
        "| metric | type | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{series.name}` | {series.kind} | {series.meaning} |" for series in METRICS]
    lines += [
        "",
        "## Outcomes by reason and by target",
        "",
        (
            "The counts of the transactions that this node committed, from the start of the "
            "process: sum them over the nodes. Every"
        ),
        (
            f"reason is there from the start. The label `target` has the {TARGETS_SHOWN} busiest "
            "targets; `other` has all further ones together."
        ),
        (
            "A target that becomes busier than the least busy of them takes its place: its "
            "counters begin at 0, and what was counted"
        ),
        "before stays with `other`.",
        "",
        "| metric | label | type | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{count.name}` | `{count.label}` | counter | {count.meaning} |" for count in COUNTS
    ]
    lines += ["", "## Metrics of the node", "", "| metric | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in NODE_METRICS]
    lines += [
        "",
        "## Metrics of the brokers (label `broker`)",
        "",
        "| metric | type | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in BROKER_METRICS]
    lines += [
        "",
        "## Metrics of the archive",
        "",
        "`chronos archive --follow` serves them at its own address, `--listen`, with the usual "
        "`process_*` and `python_*`",
        "metrics. Totals count from the start of that process, and every table is there from the "
        "start.",
        "",
        "| metric | type | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in ARCHIVE_METRICS]
    lines += [
        "",
        "## Alerts",
        "",
        "- `max(chronos_oldest_overdue_seconds) > 60`: messages are late at the moment.",
        (
            "- `chronos_paused == 1` for a minute: a shard is paused; `/v1/shards` and the log "
            "have the reason."
        ),
        "- `chronos_stalled_seconds > 0`: a shard stands still although there is work; "
        "`/v1/shards` and the log have the reason.",
        "- `sum by (shard) (chronos_master_unhealthy) >= 2`: at least two nodes find a master "
        "unhealthy; `chronos failover status` names them.",
        (
            "- `min by (shard) (time() - chronos_progress_timestamp_seconds) > 180`: a shard has "
            "not committed for three heartbeats."
        ),
        (
            "- `chronos_held_back_seconds > 60`: a producer's open transaction hides records from "
            "Chronos; `/v1/shards` counts them."
        ),
        "- `chronos_no_leader_seconds > 0` for a minute: messages wait for a partition of "
        "their target that has no leader; `chronos rates` lists the partitions.",
        '- `increase(chronos_dead_letters_total{reason!="expired"}[5m]) > 0`: messages were '
        "dead-lettered for that reason;"
        " `/v1/shards` has their targets.",
        (
            "- `chronos_certificates_stale == 1`: new certificates cannot be used, and the old "
            "ones expire; the log has the reason."
        ),
        (
            "- `chronos_jwks_stale == 1` for 10 minutes: the keys of the issuer cannot be read; "
            "the log has the reason."
        ),
        (
            "- `chronos_broker_unavailable_seconds > 0`: a broker was slow, or did not answer; "
            "`/v1/nodes` has its last latency."
        ),
        (
            "- `increase(chronos_hops_ahead_total[5m]) > 0`: the clocks of two brokers differ by "
            "more than 0.5 s; check NTP on both."
        ),
        (
            "- `chronos_audit_failing == 1` or `increase(chronos_audit_lost_total[5m]) > 0`: the "
            "audit trail cannot be written; the log says why."
        ),
        "- `chronos_tokens_stale == 1`: tokens that were removed from the file may still be "
        "valid; the log line `tokens not read` says why, and so does"
        " `chronos doctor --tokens FILE`.",
        "- `chronos_disk_free_bytes < 2 * chronos_disk_reserve_bytes`: below the reserve every "
        "shard pauses.",
        "- `time() - max(max_over_time(chronos_archive_end_timestamp_seconds[1d])) > 3600`: the "
        "archive is older than an hour; `/readyz` of `chronos archive --follow` says why.",
        "",
    ]
    return "\n".join(lines)
