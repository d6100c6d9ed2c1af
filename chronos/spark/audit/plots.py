"""Plots of an audit as inline SVG: rows of the summary in, text out.

The SVG fetches nothing and runs nothing. Colours are CSS classes of the page, so that the same plot is readable in light
and dark. Law: every shape has a title with its numbers, and every text in it is escaped.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10

from chronos.core.timefmt import format_time
from chronos.spark.audit.outcomes import OUTCOMES, WRONG, Span
from chronos.spark.audit.summary import SummaryRow

WIDTH, HEIGHT = 1_040, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 30

TICKS = 6
"""Intervals between the times below a plot."""

BARS_MAX = 260
"""Most bars of a plot; neighbouring points are added up."""

LINES = (("max", "max_ms"), ("p99.9", "p999_ms"), ("p99", "p99_ms"), ("p50", "p50_ms"))
"""Lines of the lateness plot and their fields of `Lateness`, in the order of drawing: the median on top."""


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

    parts = [_grid([(y(10**exponent), duration(10**exponent)) for exponent in range(top_exponent + 1)]), _times(span)]
    for name, field in LINES:
        values = [(row.at_ms or 0, getattr(row.lateness, field)) for row in timed]
        for stretch in _stretches(values, point_ms):
            path = " ".join(f"{x(at_ms + point_ms / 2):.1f},{y(value):.1f}" for at_ms, value in stretch)
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
            f"{moment(row.at_ms)}: {late.count:,} delivered, p50 {duration(late.p50_ms)}, p99 {duration(late.p99_ms)},"
            f" p99.9 {duration(late.p999_ms)}, max {duration(late.max_ms)}"
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
        _grid([(base - height(step * at), compact(step * at)) for at in range(floor(most / step) + 1)]),
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
                    f'<rect class="o-{outcome}" x="{x(at_ms):.1f}" y="{top:.1f}" width="{max(0.8, slot - 0.4):.1f}"'
                    f' height="{size:.1f}"/>'
                )
        listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
        parts.append(_hover(x(at_ms), slot, f"{moment(at_ms)}: {listed}"))
    return _svg("Messages by outcome over time", parts)


def _gathered(points: Sequence[SummaryRow], span: Span, point_ms: int) -> tuple[dict[int, dict[str, int]], int]:
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


def _stretches(values: Sequence[tuple[int, int | None]], point_ms: int) -> list[list[tuple[int, int]]]:
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
        found.append(f'<text x="{x(at_ms):.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{_tick(at_ms, span)}</text>')
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
        f'<rect class="hover" x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _svg(label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" class="plot">{"".join(parts)}</svg>'


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
