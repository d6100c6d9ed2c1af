"""The report of an audit: one HTML file with plots as SVG, for light and dark.

Law: the page fetches nothing and runs nothing, and every name in it is escaped.
"""

from collections.abc import Iterable, Sequence
from html import escape

from chronos.spark.audit.job import Audit
from chronos.spark.audit.outcomes import OUTCOMES, WRONG
from chronos.spark.audit.plots import LINES, duration, lateness_plot, moment, outcome_plot, share
from chronos.spark.audit.summary import Lateness, SummaryRow

TARGETS_SHOWN = 100
"""Most targets in the report; `-o json` has more, the details have all."""

HOURS_SHOWN = 500
"""Most rows of target and hour in the report."""

COLOURS = {
    "delivered": ("#2f7d55", "#4fae7f"), "missing": ("#b3261e", "#ff7a6e"), "duplicated": ("#d9480f", "#ff9a5c"),
    "early": ("#9c36b5", "#d38be6"), "cancelled": ("#6b7280", "#8b93a1"), "replaced": ("#8d99ae", "#aab6cb"),
    "expired": ("#a68a2a", "#d6b94f"), "dead-lettered": ("#7a4b1f", "#b98655"), "rejected": ("#4a5568", "#717d92"),
    "skipped": ("#a9a18f", "#c9c1ae"), "pending": ("#3b6fb5", "#7aa8e6"), "unknown": ("#b8b2a6", "#5d6470"),
}  # fmt: skip
"""Colour of each outcome on a light and on a dark page."""

LINE_COLOURS = {
    "max": ("#c7b9a6", "#6d655a"), "p999": ("#d98324", "#e8a24f"), "p99": ("#2f6f8f", "#6ab3d4"),
    "p50": ("#1d1b18", "#eceae6"),
}  # fmt: skip
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
    "rejected": "refused when it was pulled; in the rejected topic, unless its producer asked to ignore conflicts",
    "skipped": "an occurrence of a late series, skipped by its policy",
    "pending": "not judged yet: the logs do not prove that it is settled",
    "unknown": "cannot be judged: the archive has a gap, or does not contain the target",
}

assert set(COLOURS) == set(MEANINGS) == set(OUTCOMES)


def html(audit: Audit) -> str:
    """The whole page."""
    verdict, kind = "promises broken", "bad"
    if not audit.broken:
        verdict, kind = "nothing missing, duplicated or early", "good"
        if audit.not_proved:
            verdict, kind = "not everything could be judged", "open"
    wrong = ", ".join(f"{audit.overall.counts[name]:,} {name}" for name in WRONG if audit.overall.counts.get(name))
    body = [
        f'<header><h1>Audit of {escape(audit.cluster)}</h1><span class="pill {kind}">{wrong or verdict}</span></header>',
        f'<p class="soft">Messages due from {moment(audit.span.from_ms)} to {moment(audit.span.to_ms)}, judged up to'
        f" <strong>{moment(audit.judged_ms)}</strong>; archived {moment(audit.archived_ms) if audit.archived_ms else 'not yet'}. All times are UTC.</p>",
        "".join(f'<p class="soft">Not judged: {escape(why)}.</p>' for why in audit.not_proved),
        _section("Outcomes", _outcomes(audit)),
        _section("Lateness over time", _line_key() + lateness_plot(audit.points, audit.span, audit.point_ms)),
        _section(
            "Messages by outcome over time", _outcome_key(audit) + outcome_plot(audit.points, audit.span, audit.point_ms)
        ),
        _section("The worst minutes", _table(["due", *_HEADINGS], ([moment(row.at_ms), *_cells(row)] for row in audit.worst))),
        _section("Targets", _table(["target", *_HEADINGS], _limited(audit.targets, TARGETS_SHOWN, "target"))),
        _section("Targets by the hour", _hours(audit.hours)),
    ]  # fmt: skip
    if audit.samples:
        body.insert(4, _section("Samples of broken promises", _samples(audit)))
    body += [_section("Coverage of the archive", _coverage(audit))]
    return _PAGE.format(title=escape(f"Audit of {audit.cluster}"), style=_style(), body="\n".join(body))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _outcomes(audit: Audit) -> str:
    counts = audit.overall.counts
    total = sum(counts.values())
    rows = [
        [f'<i class="key o-{name}"></i>{name}', f"{counts[name]:,}", escape(share(counts[name], total)), MEANINGS[name],
         escape("; ".join(f"{count:,} {reason}" for outcome, reason, count in audit.reasons if outcome == name))]
        for name in OUTCOMES if counts.get(name)
    ]  # fmt: skip
    late = audit.overall.lateness
    lateness = (
        f"<p>Lateness of {late.count:,} delivered: p50 {duration(late.p50_ms)}, p99 {duration(late.p99_ms)},"
        f" p99.9 {duration(late.p999_ms)}, max {duration(late.max_ms)}.</p>"
    )
    return _table(["outcome", "messages", "share", "meaning", "why"], rows, numbers=(1, 2)) + lateness


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
    rows = [[escape(row.target or "-"), moment(row.at_ms), *_cells(row)] for row in hours[:HOURS_SHOWN]]
    more = f'<p class="soft">and {len(hours) - HOURS_SHOWN:,} more</p>' if len(hours) > HOURS_SHOWN else ""
    found = _table(["target", "hour", *_HEADINGS], rows, numbers=range(2, 2 + len(_HEADINGS)))
    return f"<details><summary>{len(hours):,} rows</summary>{found}{more}</details>"


def _samples(audit: Audit) -> str:
    rows = [
        [each.outcome, escape(each.target or "-"), f"{each.shard}/{each.source_offset}", moment(each.at_ms)]
        for each in audit.samples
    ]
    return _table(["outcome", "target", "shard/offset of its record", "due in the minute"], rows, numbers=())


def _coverage(audit: Audit) -> str:
    shards = [
        [str(each.shard), moment(each.settled_ms), "-" if each.gap_ms is None else f"found {moment(each.gap_ms)}"]
        for each in audit.shards
    ]
    targets = [
        [escape(each.target), moment(each.covered_ms), "-" if each.gap_ms is None else f"found {moment(each.gap_ms)}",
         "yes" if each.unresolved else "no"]
        for each in audit.archived_targets[:TARGETS_SHOWN]
    ]  # fmt: skip
    return _table(["shard", "settled up to", "gap"], shards, numbers=()) + _table(
        ["target", "archived completely up to", "gap", "open transaction"], targets, numbers=()
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] | None = None) -> str:
    """An HTML table of cells that are HTML; `numbers` are the right-aligned columns, by default all but the first."""
    right = set(range(1, len(headings)) if numbers is None else numbers)

    def line(cells: Sequence[str], tag: str) -> str:
        made = (f"<{tag}{' class=num' if at in right else ''}>{cell}</{tag}>" for at, cell in enumerate(cells))
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    if not body:
        return '<p class="soft">None.</p>'
    return f'<div class="scroll"><table><thead>{line(headings, "th")}</thead><tbody>{body}</tbody></table></div>'


def _line_key() -> str:
    return _key((f"l-{name.replace('.', '')}", name) for name, _ in reversed(LINES))


def _outcome_key(audit: Audit) -> str:
    return _key((f"o-{name}", name) for name in OUTCOMES if audit.overall.counts.get(name))


def _key(pairs: Iterable[tuple[str, str]]) -> str:
    return f'<p class="soft keys">{"".join(f"<span><i class={chr(34)}key {kind}{chr(34)}></i>{name}</span>" for kind, name in pairs)}</p>'


def _style() -> str:
    def rules(at: int) -> str:
        outcomes = "".join(f".o-{name}{{fill:{pair[at]};background:{pair[at]}}}" for name, pair in COLOURS.items())
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
"""

_DARK = """:root { --paper: #111317; --card: #191c22; --ink: #eceae6; --soft: #a09a90; --line: #2b2f37;
  --good: #6fd19f; --good-wash: #16301f; --bad: #ff8f85; --bad-wash: #3b1b19; }"""

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
"""
