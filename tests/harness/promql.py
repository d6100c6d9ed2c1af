"""A small evaluator of PromQL over samples, for tests of the rules in `config/prometheus`.

It knows what those rules use: instant and range selectors, numbers, comparisons, arithmetic, `and`,
`or` and `unless`, `sum`, `max`, `min` and `count` with `by`, `rate`, `increase`, `max_over_time`,
`histogram_quantile` and `time`. Anything else raises `Unsupported`, so that no rule is evaluated in
another way than Prometheus 3 does it. `tests/unit/test_promql.py` has values that Prometheus's own
engine computed."""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    BinModifier,
    Call,
    Expr,
    LabelModifierType,
    Matcher,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorMatchCardinality,
    VectorSelector,
    parse,
)

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Point = tuple[float, float]
"""Time in s, and value."""

NAME = "__name__"

LOOK_BACK_S = 300.0
"""An instant selector finds a sample that is not older."""

NEAR = 1.1
"""A first or last sample that is nearer to the end of a range than the average distance of samples
times this is extrapolated to that end."""

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}
MATCHES: dict[str, Callable[[str, str], bool]] = {
    str(MatchOp.Equal): operator.eq,
    str(MatchOp.NotEqual): operator.ne,
    str(MatchOp.Re): lambda value, pattern: re.fullmatch(pattern, value) is not None,
    str(MatchOp.NotRe): lambda value, pattern: re.fullmatch(pattern, value) is None,
}


class Unsupported(Exception):
    """The expression has something that this evaluator does not know."""


class Ambiguous(Exception):
    """Several series of one side match one of the other side: Prometheus refuses the expression
    too."""


@dataclass(kw_only=True)
class Samples:
    """Samples of series, by time."""

    series: dict[str, dict[Labels, list[tuple[float, float | None]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """By name and labels, the name among them: time in s and value; None: the series is gone from
    then on."""

    def add(self, labels: Labels, time_s: float, value: float | None) -> None:
        """Add a sample that is later than all others of its series."""
        self.series[dict(labels)[NAME]][labels].append((time_s, value))


def labels_of(name: str, labels: Mapping[str, str]) -> Labels:
    """The labels of a series, without empty ones."""
    return frozenset({NAME: name, **{key: text for key, text in labels.items() if text}}.items())


def evaluate(expression: str | Expr, samples: Samples, now_s: float) -> Vector | float:
    """The value of an instant query. Raises Unsupported, Ambiguous."""
    tree = parse(expression) if isinstance(expression, str) else expression
    return _Evaluation(samples, now_s).value(tree)


class _Evaluation:
    """At one moment."""

    def __init__(self, samples: Samples, now_s: float) -> None:
        self._samples = samples
        self._now_s = now_s

    def value(self, node: Expr) -> Vector | float:
        match node:
            case NumberLiteral():
                return float(node.val)
            case ParenExpr():
                return self.value(node.expr)
            case VectorSelector():
                return self._instant(node)
            case AggregateExpr():
                return self._aggregate(node)
            case Call():
                return self._call(node)
            case BinaryExpr():
                return self._binary(node)
            case _:
                raise Unsupported(f"{type(node).__name__}: {node.prettify()}")

    def _vector(self, node: Expr) -> Vector:
        found = self.value(node)
        if isinstance(found, float):
            raise Unsupported(f"a number where a vector is wanted: {node.prettify()}")
        return found

    # --- samples

    def _matching(
        self, node: VectorSelector
    ) -> Iterable[tuple[Labels, list[tuple[float, float | None]]]]:
        if node.offset is not None or node.at is not None or node.matchers.or_matchers:
            raise Unsupported(node.prettify())
        if not node.name:
            raise Unsupported(f"a selector without a name: {node.prettify()}")
        for labels, points in self._samples.series.get(node.name, {}).items():
            if all(_matches(each, dict(labels)) for each in node.matchers.matchers):
                yield labels, points

    def _instant(self, node: VectorSelector) -> Vector:
        found: Vector = {}
        for labels, points in self._matching(node):
            near = [
                value for at_s, value in points if self._now_s - LOOK_BACK_S < at_s <= self._now_s
            ]
            if near and near[-1] is not None:
                found[labels] = near[-1]
        return found

    def _range(self, node: Expr) -> tuple[dict[Labels, list[Point]], float]:
        """The samples of each series in a range, and its length in s."""
        if not isinstance(node, MatrixSelector):
            raise Unsupported(f"no range: {node.prettify()}")
        length: timedelta = node.range
        length_s = length.total_seconds()
        found = {
            labels: [
                (at_s, value)
                for at_s, value in points
                if value is not None and self._now_s - length_s < at_s <= self._now_s
            ]
            for labels, points in self._matching(node.vector_selector)
        }
        return found, length_s

    # --- functions

    def _call(self, node: Call) -> Vector | float:
        name, arguments = node.func.name, node.args
        if name == "time":
            return self._now_s
        if name in ("rate", "increase"):
            series, length_s = self._range(arguments[0])
            increases = {
                _without(labels, NAME): grown
                for labels, points in series.items()
                if (grown := _increase(points, self._now_s - length_s, self._now_s)) is not None
            }
            divisor = length_s if name == "rate" else 1.0
            return {labels: grown / divisor for labels, grown in increases.items()}
        if name == "max_over_time":
            series, _ = self._range(arguments[0])
            return {
                _without(labels, NAME): max(value for _, value in points)
                for labels, points in series.items()
                if points
            }
        if name == "histogram_quantile":
            quantile = self.value(arguments[0])
            assert isinstance(quantile, float)
            return _quantiles(quantile, self._vector(arguments[1]))
        raise Unsupported(f"the function {name}")

    def _aggregate(self, node: AggregateExpr) -> Vector:
        combine = AGGREGATIONS.get(str(node.op))
        by = node.modifier
        if combine is None or node.param is not None:
            raise Unsupported(node.prettify())
        if by is not None and by.type != AggModifierType.By:
            raise Unsupported(f"without: {node.prettify()}")
        kept = [] if by is None else by.labels
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in self._vector(node.expr).items():
            if math.isnan(value):
                raise Unsupported(f"not a number: {node.prettify()}")
            groups[_only(labels, kept)].append(value)
        return {labels: float(combine(values)) for labels, values in groups.items()}

    # --- operators

    def _binary(self, node: BinaryExpr) -> Vector | float:
        name, how = str(node.op), node.modifier
        if how is not None and how.return_bool:
            raise Unsupported(f"bool: {node.prettify()}")
        left, right = self.value(node.lhs), self.value(node.rhs)
        if name in ("and", "or", "unless"):
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            return _combined(name, left, right, how)
        if name not in COMPARISONS and name not in ARITHMETIC:
            raise Unsupported(f"the operator {name}")
        if isinstance(left, float) and isinstance(right, float):
            if name in ARITHMETIC:
                return ARITHMETIC[name](left, right)
            raise Unsupported(f"a comparison of numbers: {node.prettify()}")
        if isinstance(left, dict) and isinstance(right, dict):
            return _paired(name, left, right, how)
        found: Vector = {}
        for labels, value in (left if isinstance(left, dict) else right).items():  # type: ignore[union-attr]
            one = left if isinstance(left, float) else value
            other = right if isinstance(right, float) else value
            if name in ARITHMETIC:
                found[_without(labels, NAME)] = ARITHMETIC[name](one, other)
            elif COMPARISONS[name](one, other):
                found[labels] = value
        return found


def _matches(matcher: Matcher, labels: dict[str, str]) -> bool:
    return MATCHES[str(matcher.op)](labels.get(matcher.name, ""), matcher.value)


def _only(labels: Labels, names: Iterable[str]) -> Labels:
    kept = set(names)
    return frozenset(each for each in labels if each[0] in kept)


def _without(labels: Labels, *names: str) -> Labels:
    return frozenset(each for each in labels if each[0] not in names)


def _key(how: BinModifier | None) -> Callable[[Labels], Labels]:
    """The part of the labels by which both sides of an operator match."""
    if how is None or how.matching is None:
        return lambda labels: _without(labels, NAME)
    names = how.matching.labels
    if how.matching.type == LabelModifierType.Include:
        return lambda labels: _only(labels, names)
    return lambda labels: _without(labels, NAME, *names)


def _named(labels: Labels, how: BinModifier | None) -> Labels:
    """The labels of the result of a comparison: the name stays, unless `on` leaves it out."""
    if how is None or how.matching is None:
        return labels
    if how.matching.type == LabelModifierType.Include:
        return _only(labels, how.matching.labels)
    return _without(labels, *how.matching.labels)


def _combined(name: str, left: Vector, right: Vector, how: BinModifier | None) -> Vector:
    """`and`, `or` and `unless`."""
    key = _key(how)
    if name == "or":
        known = set(map(key, left))
        return left | {labels: value for labels, value in right.items() if key(labels) not in known}
    known = set(map(key, right))
    return {
        labels: value for labels, value in left.items() if (key(labels) in known) == (name == "and")
    }


def _paired(name: str, left: Vector, right: Vector, how: BinModifier | None) -> Vector:
    """A comparison or arithmetic of the series of both sides, one to one."""
    if how is not None and how.card != VectorMatchCardinality.OneToOne:
        raise Unsupported("group_left and group_right")
    key = _key(how)
    others: Vector = {}
    for labels, value in right.items():
        if key(labels) in others:
            raise Ambiguous(f"on the right: {sorted(labels)}")
        others[key(labels)] = value
    matched: set[Labels] = set()
    found: Vector = {}
    for labels, value in left.items():
        same = key(labels)
        if same not in others:
            continue
        if name in COMPARISONS and not COMPARISONS[name](value, others[same]):
            continue
        if same in matched:
            raise Ambiguous(f"on the left: {sorted(labels)}")
        matched.add(same)
        if name in COMPARISONS:
            found[_named(labels, how)] = value
        else:
            found[same] = ARITHMETIC[name](value, others[same])
    return found


def _increase(points: Sequence[Point], begin_s: float, end_s: float) -> float | None:
    """The increase of a counter in a range, extrapolated to it; None: it has no two samples."""
    if len(points) < 2:
        return None
    values = [value for _, value in points]
    resets = math.fsum(before for before, after in pairwise(values) if after < before)
    grown = values[-1] - values[0] + resets
    sampled_s = points[-1][0] - points[0][0]
    apart_s = sampled_s / (len(points) - 1)
    to_begin_s, to_end_s = points[0][0] - begin_s, end_s - points[-1][0]
    if to_begin_s >= apart_s * NEAR:
        to_begin_s = apart_s / 2
    if grown > 0 and values[0] >= 0:
        # A counter began at 0 at the earliest.
        to_begin_s = min(to_begin_s, sampled_s * values[0] / grown)
    if to_end_s >= apart_s * NEAR:
        to_end_s = apart_s / 2
    return grown * (sampled_s + to_begin_s + to_end_s) / sampled_s


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    if not 0 <= quantile <= 1:
        raise Unsupported(f"the quantile {quantile:g}")
    histograms: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        histograms[_without(labels, NAME, "le")].append((bound, count))
    return {labels: _quantile(quantile, sorted(found)) for labels, found in histograms.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    """By linear interpolation within a bucket; `buckets`: upper bound and count up to there."""
    if len(buckets) < 2 or buckets[-1][0] != math.inf or buckets[-1][1] == 0:
        return math.nan
    if any(after < before for (_, before), (_, after) in pairwise(buckets)):
        raise Unsupported("a histogram whose counts fall")
    rank = quantile * buckets[-1][1]
    at = next((at for at, (_, count) in enumerate(buckets[:-1]) if count >= rank), None)
    if at is None:
        return buckets[-2][0]
    bound, count = buckets[at]
    if at == 0 and bound <= 0:
        return bound
    lower, before = buckets[at - 1] if at else (0.0, 0.0)
    return lower + (bound - lower) * (rank - before) / (count - before)
