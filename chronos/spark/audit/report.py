"""The report of an audit: one HTML file with plots as inline SVG.

Colours are CSS classes of the page, so that plots are readable in light and dark. Law: the page
fetches nothing and runs nothing; every name and text in it is escaped; every bar and every
point in time of a plot has a title with its numbers."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10

from chronos.core.timefmt import format_time
from chronos.spark.audit.job import Audit
from chronos.spark.audit.outcomes import OUTCOMES, WRONG, Span
from chronos.spark.audit.summary import Lateness, SummaryRow
from chronos.spark.objective import Result

WIDTH, HEIGHT = 1_040, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 30

TICKS = 6
"""Intervals between the times below a plot."""

BARS_MAX = 260
"""Most bars of a plot; neighbouring points are added up."""

LINES = (("max", "max_ms"), ("p99.9", "p999_ms"), ("p99", "p99_ms"), ("p50", "p50_ms"))
"""Lines of the lateness plot and their fields of `Lateness`, in the order of drawing: the median on
top."""


def lateness_plot(points: Sequence[SummaryRow], span: Span, point_ms: int) -> str:
    """Percentiles of lateness over due time, on a logarithmic scale."""
    timed = [row for row in points if row.lateness.count]
    if not timed:
        return '<p class="soft">Nothing was delivered in this window.</p>'
    top_exponent = max(1, ceil(log10(max(10, *(row.lateness.max_ms or 0 for row in timed)))))
    x = _time_scale(span)

    def y(late_ms: float) -> float:
        share = log10(max(1.0, late_ms)) / top_exponent
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        _grid([(y(10**exponent), duration(10**exponent)) for exponent in range(top_exponent + 1)]),
        _times(span),
    ]
    for name, field in LINES:
        values = [(row.at_ms or 0, getattr(row.lateness, field)) for row in timed]
        for stretch in _stretches(values, point_ms):
            path = " ".join(
                f"{x(at_ms + point_ms / 2):.1f},{y(value):.1f}" for at_ms, value in stretch
            )
            kind = name.replace(".", "")
            if len(stretch) == 1:
                left, _, top = path.partition(",")
                parts.append(f'<circle class="dot {kind}" cx="{left}" cy="{top}" r="2"/>')
            else:
                parts.append(f'<polyline class="line {kind}" points="{path}"/>')
    slot = max(1.5, x(span.from_ms + point_ms) - x(span.from_ms))
    for row in timed:
        late = row.lateness
        title = (
            f"{moment(row.at_ms)}: {late.count:,} delivered, p50 {duration(late.p50_ms)}, p99 "
            f"{duration(late.p99_ms)}, p99.9 {duration(late.p999_ms)}, max {duration(late.max_ms)}"
        )
        parts.append(_hover(x(row.at_ms or 0), slot, title))
    return _svg("Lateness over time", parts)


def outcome_plot(points: Sequence[SummaryRow], span: Span, point_ms: int) -> str:
    """Messages by outcome over due time, as stacked bars."""
    if not points:
        return '<p class="soft">Nothing was due in this window.</p>'
    bars, width = _gathered(points, span, point_ms)
    most = max(sum(counts.values()) for counts in bars.values())
    x = _time_scale(span)

    def height(count: float) -> float:
        return count / most * (HEIGHT - TOP - BOTTOM)

    base = HEIGHT - BOTTOM
    step = _nice(most / 4)
    parts = [
        _grid(
            [(base - height(step * at), compact(step * at)) for at in range(floor(most / step) + 1)]
        ),
        _times(span),
    ]
    slot = max(1.0, x(span.from_ms + width) - x(span.from_ms))
    for at_ms, counts in bars.items():
        top = float(base)
        for outcome in OUTCOMES:
            if counts.get(outcome):
                size = max(height(counts[outcome]), 1.0 if outcome in WRONG else 0.0)
                top -= size
                parts.append(
                    f'<rect class="o-{outcome}" x="{x(at_ms):.1f}" y="{top:.1f}" '
                    f'width="{max(0.8, slot - 0.4):.1f}"'
                    f' height="{size:.1f}"/>'
                )
        listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
        parts.append(_hover(x(at_ms), slot, f"{moment(at_ms)}: {listed}"))
    return _svg("Messages by outcome over time", parts)


def _gathered(
    points: Sequence[SummaryRow], span: Span, point_ms: int
) -> tuple[dict[int, dict[str, int]], int]:
    """Counts by the time of a bar, and the width of a bar in ms."""
    together = max(1, ceil((span.to_ms - span.from_ms) / point_ms / BARS_MAX))
    width = together * point_ms
    bars: dict[int, dict[str, int]] = {}
    for row in points:
        at_ms = (row.at_ms or 0) - (row.at_ms or 0) % width
        counts = bars.setdefault(at_ms, {})
        for outcome, count in row.counts.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return bars, width


def _stretches(
    values: Sequence[tuple[int, int | None]], point_ms: int
) -> list[list[tuple[int, int]]]:
    """Runs of neighbouring points. No line crosses a hole, where there is no data."""
    found: list[list[tuple[int, int]]] = []
    for at_ms, value in values:
        if value is None:
            continue
        if found and at_ms - found[-1][-1][0] <= point_ms:
            found[-1].append((at_ms, value))
        else:
            found.append([(at_ms, value)])
    return found


def _time_scale(span: Span) -> Callable[[float], float]:
    length_ms = max(1, span.to_ms - span.from_ms)
    room = WIDTH - LEFT - RIGHT

    def x(at_ms: float) -> float:
        return LEFT + min(1.0, max(0.0, (at_ms - span.from_ms) / length_ms)) * room

    return x


def _times(span: Span) -> str:
    x = _time_scale(span)
    stride = (span.to_ms - span.from_ms) / TICKS
    found = []
    for at in range(TICKS + 1):
        at_ms = int(span.from_ms + at * stride)
        anchor = "start" if at == 0 else "end" if at == TICKS else "middle"
        found.append(
            f'<text x="{x(at_ms):.1f}" y="{HEIGHT - 10}" '
            f'text-anchor="{anchor}">{_tick(at_ms, span)}</text>'
        )
    return "".join(found)


def _tick(at_ms: int, span: Span) -> str:
    shown = datetime.fromtimestamp(at_ms / 1_000, UTC)
    length_ms = span.to_ms - span.from_ms
    return shown.strftime("%H:%M:%S" if length_ms < 3_600_000 else "%m-%d %H:%M")


def _grid(lines: Sequence[tuple[float, str]]) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        for y, label in lines
    )


def _hover(x: float, width: float, title: str) -> str:
    return (
        f'<rect class="hover" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _svg(label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'class="plot">{"".join(parts)}</svg>'
    )


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    exponent: float = 10.0 ** floor(log10(max(value, 1.0)))
    return next(step * exponent for step in (1, 2, 5, 10) if step * exponent >= value)


def compact(value: float) -> str:
    """A count in few characters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def share(count: int, total: int) -> str:
    """A percentage; a small share is not shown as zero."""
    return "< 0.01%" if 0 < count < total * 0.00005 else f"{count / total:.2%}"


def duration(value_ms: int | None) -> str:
    """A number of milliseconds for people."""
    if value_ms is None:
        return "-"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if value_ms >= size:
            return f"{value_ms / size:.3g} {unit}"
    return f"{value_ms} ms"


def moment(at_ms: int | None) -> str:
    """A time in UTC, without milliseconds if they are zero."""
    return "-" if at_ms is None else format_time(at_ms).replace("T", " ").replace(".000Z", "Z")


TARGETS_SHOWN = 100
"""Most targets in the report; `-o json` has more, the details have all."""

HOURS_SHOWN = 500
"""Most rows of target and hour in the report."""

COLOURS = {
    "delivered": ("#2f7d55", "#4fae7f"),
    "missing": ("#b3261e", "#ff7a6e"),
    "duplicated": ("#d9480f", "#ff9a5c"),
    "early": ("#9c36b5", "#d38be6"),
    "cancelled": ("#6b7280", "#8b93a1"),
    "replaced": ("#8d99ae", "#aab6cb"),
    "expired": ("#a68a2a", "#d6b94f"),
    "dead-lettered": ("#7a4b1f", "#b98655"),
    "rejected": ("#4a5568", "#717d92"),
    "skipped": ("#a9a18f", "#c9c1ae"),
    "pending": ("#3b6fb5", "#7aa8e6"),
    "unknown": ("#b8b2a6", "#5d6470"),
    "erased": ("#d8d3c8", "#454b55"),
}
"""Colour of each outcome on a light and on a dark page."""

LINE_COLOURS = {
    "max": ("#c7b9a6", "#6d655a"),
    "p999": ("#d98324", "#e8a24f"),
    "p99": ("#2f6f8f", "#6ab3d4"),
    "p50": ("#1d1b18", "#eceae6"),
}
"""Colour of each line of the lateness plot on a light and on a dark page."""

MEANINGS = {
    "delivered": "found in its target once, not before its due time",
    "missing": "proved to be settled, and not in its target",
    "duplicated": "found more than once, or found although it ended in another way",
    "early": "found with a timestamp more than 0.5 s before its due time",
    "cancelled": "cancelled in time",
    "replaced": "replaced by a later message with its id",
    "expired": "not delivered before chronos-expire-at",
    "dead-lettered": "could not be delivered; in the dead-letter topic",
    "rejected": (
        "refused when it was pulled; in the rejected topic, unless its producer asked to ignore "
        "conflicts"
    ),
    "skipped": "an occurrence of a late series, skipped by its policy",
    "pending": "not judged yet: the logs do not prove that it is settled",
    "unknown": "cannot be judged: the archive has a gap, or does not contain the target",
    "erased": "judged before, then expired or forgotten in the archive",
}

assert set(COLOURS) == set(MEANINGS) == set(OUTCOMES)


def html(audit: Audit, objectives: Sequence[Result] = ()) -> str:
    """The whole page."""
    verdict, kind = "promises broken", "bad"
    if not audit.broken:
        verdict, kind = "nothing missing, duplicated or early", "good"
        if audit.not_proved:
            verdict, kind = "not everything could be judged", "open"
    wrong = ", ".join(
        f"{audit.overall.counts[name]:,} {name}" for name in WRONG if audit.overall.counts.get(name)
    )
    body = [
        (
            f'<header><h1>Audit of {escape(audit.cluster)}</h1><span class="pill '
            f'{kind}">{wrong or verdict}</span></header>'
        ),
        f'<p class="soft">Messages due from {moment(audit.span.from_ms)} to '
        f"{moment(audit.span.to_ms)}, judged up to"
        f" <strong>{moment(audit.judged_ms)}</strong>; archived "
        f"{moment(audit.archived_ms) if audit.archived_ms else 'not yet'}. All times are UTC.</p>",
        "".join(f'<p class="soft">Not judged: {escape(why)}.</p>' for why in audit.not_proved),
        _section("Outcomes", _outcomes(audit) + _objectives(objectives)),
        _section(
            "Lateness over time",
            _line_key() + lateness_plot(audit.points, audit.span, audit.point_ms),
        ),
        _section(
            "Messages by outcome over time",
            _outcome_key(audit) + outcome_plot(audit.points, audit.span, audit.point_ms),
        ),
        _section("Day by day", _days(audit.days, objectives)),
        _section(
            "The worst minutes",
            _table(["due", *_HEADINGS], ([moment(row.at_ms), *_cells(row)] for row in audit.worst)),
        ),
        _section(
            "Targets",
            _table(["target", *_HEADINGS], _limited(audit.targets, TARGETS_SHOWN, "target")),
        ),
        _section("Targets by the hour", _hours(audit.hours)),
    ]
    if audit.samples:
        body.insert(4, _section("Samples of broken promises", _samples(audit)))
    body += [_section("Coverage of the archive", _coverage(audit))]
    return _PAGE.format(
        title=escape(f"Audit of {audit.cluster}"), style=_style(), body="\n".join(body)
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _outcomes(audit: Audit) -> str:
    counts = audit.overall.counts
    total = sum(counts.values())
    rows = [
        [
            f'<i class="key o-{name}"></i>{name}',
            f"{counts[name]:,}",
            escape(share(counts[name], total)),
            MEANINGS[name],
            escape(
                "; ".join(
                    f"{count:,} {reason}"
                    for outcome, reason, count in audit.reasons
                    if outcome == name
                )
            ),
        ]
        for name in OUTCOMES
        if counts.get(name)
    ]
    late = audit.overall.lateness
    lateness = (
        f"<p>Lateness of {late.count:,} delivered: p50 {duration(late.p50_ms)}, p99 "
        f"{duration(late.p99_ms)}, p99.9 {duration(late.p999_ms)}, max "
        f"{duration(late.max_ms)}.</p>"
    )
    return (
        _table(["outcome", "messages", "share", "meaning", "why"], rows, numbers=(1, 2)) + lateness
    )


def _objectives(results: Sequence[Result]) -> str:
    """One line for each objective."""
    return "".join(
        f"<p>Objective {escape(each.objective.text)}: "
        f"{'met' if each.met else '<b class=bad>missed</b>'}, {each.objective.figure} is "
        f"{duration(each.value_ms)}.</p>"
        for each in results
    )


def _days(days: Sequence[SummaryRow], results: Sequence[Result]) -> str:
    """A row for each day, with a column for each objective."""
    met = (
        [
            '<b class="bad">missed</b>' if day.at_ms in each.missed_days else "met"
            for each in results
        ]
        for day in days
    )
    return _table(
        ["day", *_HEADINGS, *(escape(each.objective.text) for each in results)],
        (
            [moment(day.at_ms)[:10], *_cells(day), *columns]
            for day, columns in zip(days, met, strict=True)
        ),
    )


_HEADINGS = ("messages", *WRONG, "p50", "p99", "p99.9", "max")


def _cells(row: SummaryRow) -> list[str]:
    wrong = [_count(row.counts.get(name, 0)) for name in WRONG]
    return [f"{sum(row.counts.values()):,}", *wrong, *_late(row.lateness)]


def _count(count: int) -> str:
    return f'<b class="bad">{count:,}</b>' if count else "0"


def _late(late: Lateness) -> list[str]:
    return [duration(value) for value in (late.p50_ms, late.p99_ms, late.p999_ms, late.max_ms)]


def _limited(rows: Sequence[SummaryRow], most: int, what: str) -> Iterable[list[str]]:
    for row in rows[:most]:
        yield [escape(row.target or "-"), *_cells(row)]
    if len(rows) > most:
        yield [f"and {len(rows) - most:,} more {what}s", *[""] * len(_HEADINGS)]


def _hours(hours: Sequence[SummaryRow]) -> str:
    rows = [
        [escape(row.target or "-"), moment(row.at_ms), *_cells(row)] for row in hours[:HOURS_SHOWN]
    ]
    more = (
        f'<p class="soft">and {len(hours) - HOURS_SHOWN:,} more</p>'
        if len(hours) > HOURS_SHOWN
        else ""
    )
    found = _table(["target", "hour", *_HEADINGS], rows, numbers=range(2, 2 + len(_HEADINGS)))
    return f"<details><summary>{len(hours):,} rows</summary>{found}{more}</details>"


def _samples(audit: Audit) -> str:
    rows = [
        [
            each.outcome,
            escape(each.target or "-"),
            f"{each.shard}/{each.source_offset}",
            moment(each.at_ms),
        ]
        for each in audit.samples
    ]
    return _table(
        ["outcome", "target", "shard/offset of its record", "due in the minute"], rows, numbers=()
    )


def _coverage(audit: Audit) -> str:
    shards = [
        [
            str(each.shard),
            moment(each.settled_ms),
            "-" if each.gap_ms is None else f"found {moment(each.gap_ms)}",
        ]
        for each in audit.shards
    ]
    targets = [
        [
            escape(each.target),
            moment(each.covered_ms),
            "-" if each.gap_ms is None else f"found {moment(each.gap_ms)}",
            "yes" if each.unresolved else "no",
        ]
        for each in audit.archived_targets[:TARGETS_SHOWN]
    ]
    return _table(["shard", "settled up to", "gap"], shards, numbers=()) + _table(
        ["target", "archived completely up to", "gap", "open transaction"], targets, numbers=()
    )


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] | None = None
) -> str:
    """An HTML table of cells that are HTML; `numbers` are the right-aligned columns, by default all
    but the first."""
    right = set(range(1, len(headings)) if numbers is None else numbers)

    def line(cells: Sequence[str], tag: str) -> str:
        made = (
            f"<{tag}{' class=num' if at in right else ''}>{cell}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    if not body:
        return '<p class="soft">None.</p>'
    return f'<div class="scroll"><table><thead>{line(headings, "th")}</thead><tbody>{body}</tbody></table></div>'  # noqa: E501


def _line_key() -> str:
    return _key((f"l-{name.replace('.', '')}", name) for name, _ in reversed(LINES))


def _outcome_key(audit: Audit) -> str:
    return _key((f"o-{name}", name) for name in OUTCOMES if audit.overall.counts.get(name))


def _key(pairs: Iterable[tuple[str, str]]) -> str:
    return f'<p class="soft keys">{"".join(f"<span><i class={chr(34)}key {kind}{chr(34)}></i>{name}</span>" for kind, name in pairs)}</p>'  # noqa: E501


def _style() -> str:
    def rules(at: int) -> str:
        outcomes = "".join(
            f".o-{name}{{fill:{pair[at]};background:{pair[at]}}}" for name, pair in COLOURS.items()
        )
        lines = "".join(
            f".line.{name}{{stroke:{pair[at]}}}.dot.{name}{{fill:{pair[at]}}}.l-{name}{{background:{pair[at]}}}"
            for name, pair in LINE_COLOURS.items()
        )
        return outcomes + lines

    return f"{_STYLE}{rules(0)}@media (prefers-color-scheme: dark){{{_DARK}{rules(1)}}}"


_STYLE = """
:root { color-scheme: light dark; --paper: #f7f5f1; --card: #fff; --ink: #1d1b18; --soft: #6a645b; --line: #e4dfd6;
  --good: #1f7a4d; --good-wash: #e2f2e9; --bad: #b3261e; --bad-wash: #fbe5e3; }
body { margin: 0 auto; max-width: 1120px; padding: 20px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
h1 { font-size: 21px; margin: 0; } h2 { font-size: 16px; margin: 0 0 8px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 20px; margin: 16px 0; }
.soft { color: var(--soft); } .bad { color: var(--bad); }
.pill { border-radius: 999px; padding: 3px 11px; font-size: 13px; font-weight: 600; }
.pill.good { background: var(--good-wash); color: var(--good); } .pill.bad { background: var(--bad-wash); color: var(--bad); }
.pill.open { background: var(--line); color: var(--ink); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } .num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.plot { width: 100%; height: auto; display: block; } .plot text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.hover { fill: transparent; } .hover:hover { fill: var(--ink); fill-opacity: 0.08; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
.keys span { margin-right: 16px; white-space: nowrap; } summary { cursor: pointer; }
"""  # noqa: E501

_DARK = """:root { --paper: #111317; --card: #191c22; --ink: #eceae6; --soft: #a09a90; --line: #2b2f37;
  --good: #6fd19f; --good-wash: #16301f; --bad: #ff8f85; --bad-wash: #3b1b19; }"""  # noqa: E501

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""  # noqa: E501
