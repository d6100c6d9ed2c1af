"""The evaluator of PromQL for tests of the rules: the values are those of Prometheus 3.5, whose
`promtool test rules` was given the same series."""

from __future__ import annotations

import math
import re

import pytest

from tests.harness.promql import Ambiguous, Labels, Samples, Unsupported, evaluate, labels_of

EVERY_S = 60.0
"""Between two samples."""

NOW_S = 9 * EVERY_S
"""Time of the tenth sample."""

SERIES = {
    'grows{shard="0"}': "0 10 20 30 40 50 60 70 80 90",
    'grows{shard="1"}': "0 0 0 0 5 5 5 5 5 5",
    'restarts{shard="0"}': "10 20 30 2 4 6 8 10 12 14",
    'begins{shard="0"}': "_ _ _ _ _ _ _ 1 1 1",
    'jumps{shard="0"}': "_ _ _ _ _ _ _ 0 1 1",
    'once{shard="0"}': "_ _ _ _ _ _ _ _ _ 7",
    'gone{shard="0"}': "1 1 1 1 1 1 1 1 stale _",
    'old{shard="0"}': "1 1 1 1 _ _ _ _ _ _",
    'recent{shard="0"}': "1 1 1 1 1 _ _ _ _ _",
    'master{instance="a",shard="0"}': "_ _ _ _ _ _ _ _ _ 1",
    'master{instance="b",shard="0"}': "_ _ _ _ _ _ _ _ _ 0",
    'master{instance="a",shard="1"}': "_ _ _ _ _ _ _ _ _ 0",
    'master{instance="b",shard="1"}': "_ _ _ _ _ _ _ _ _ 0",
    'late{instance="a",shard="0"}': "_ _ _ _ _ _ _ _ _ 3",
    'late{instance="b",shard="0"}': "_ _ _ _ _ _ _ _ _ 500",
    'late{instance="a",shard="1"}': "_ _ _ _ _ _ _ _ _ 70",
    'late{instance="b",shard="1"}': "_ _ _ _ _ _ _ _ _ 90",
    'at{instance="a",shard="0"}': "_ _ _ _ _ _ _ _ _ 440",
    'at{instance="b",shard="0"}': "_ _ _ _ _ _ _ _ _ 40",
    'free{instance="a"}': "_ _ _ _ _ _ _ _ _ 30",
    'reserve{instance="a"}': "_ _ _ _ _ _ _ _ _ 20",
    'took_bucket{le="0.1"}': "0 0 0 0 0 0 0 0 0 1",
    'took_bucket{le="0.5"}': "0 0 0 0 0 0 0 0 0 5",
    'took_bucket{le="1"}': "0 0 0 0 0 0 0 0 0 9",
    'took_bucket{le="+Inf"}': "0 0 0 0 0 0 0 0 0 10",
}

VALUES: list[tuple[str, dict[str, float]]] = [
    # Selectors: at most five minutes old, and gone where the series is.
    ("grows", {'grows{shard="0"}': 90, 'grows{shard="1"}': 5}),
    ('grows{shard="1"}', {'grows{shard="1"}': 5}),
    ('grows{shard!="1"}', {'grows{shard="0"}': 90}),
    ('grows{shard=~"1|2"}', {'grows{shard="1"}': 5}),
    ('grows{shard!~"1|2",none=""}', {'grows{shard="0"}': 90}),
    ("gone", {}),
    ("old", {}),
    ("recent", {}),
    # Counters.
    ("increase(grows[5m])", {'{shard="0"}': 50, '{shard="1"}': 0}),
    ("increase(grows[9m])", {'{shard="0"}': 90, '{shard="1"}': 5}),
    ("increase(grows[20m])", {'{shard="0"}': 90, '{shard="1"}': 5}),
    ("rate(grows[5m])", {'{shard="0"}': 50 / 300, '{shard="1"}': 0}),
    ("increase(restarts[10m])", {'{shard="0"}': 340 / 9}),
    ("increase(begins[5m])", {'{shard="0"}': 0}),
    ("increase(jumps[5m])", {'{shard="0"}': 1}),
    ("increase(once[5m])", {}),
    ("increase(gone[5m])", {'{shard="0"}': 0}),
    ("max_over_time(restarts[10m])", {'{shard="0"}': 30}),
    ("max_over_time(restarts[2m])", {'{shard="0"}': 14}),
    ("max_over_time(gone[5m])", {'{shard="0"}': 1}),
    ("max_over_time(old[5m])", {}),
    # Aggregations.
    ("sum(grows)", {"{}": 95}),
    ("max by (shard) (late)", {'{shard="0"}': 500, '{shard="1"}': 90}),
    ("min by (shard) (late)", {'{shard="0"}': 3, '{shard="1"}': 70}),
    ("sum by (shard, none) (late)", {'{shard="0"}': 503, '{shard="1"}': 160}),
    ("count(late)", {"{}": 4}),
    ("sum(none)", {}),
    # Comparisons keep the name, arithmetic does not.
    ("late > 80", {'late{instance="b",shard="0"}': 500, 'late{instance="b",shard="1"}': 90}),
    ("80 < grows", {'grows{shard="0"}': 90}),
    ("late == 3", {'late{instance="a",shard="0"}': 3}),
    ("late != 3 < 80", {'late{instance="a",shard="1"}': 70}),
    ("late >= 90 <= 90", {'late{instance="b",shard="1"}': 90}),
    (
        "time() - at",
        {'{instance="a",shard="0"}': 100, '{instance="b",shard="0"}': 500},
    ),
    ("2 * reserve + 1", {'{instance="a"}': 41}),
    ("free < 2 * reserve", {'free{instance="a"}': 30}),
    ("free - reserve", {'{instance="a"}': 10}),
    ("free > on (instance) reserve", {'{instance="a"}': 30}),
    ("free > ignoring (shard) reserve", {'free{instance="a"}': 30}),
    # Sets.
    ("late and on (instance, shard) master == 1", {'late{instance="a",shard="0"}': 3}),
    ("late and master == 1", {'late{instance="a",shard="0"}': 3}),
    (
        "late unless on (shard) master == 1",
        {'late{instance="a",shard="1"}': 70, 'late{instance="b",shard="1"}': 90},
    ),
    ("free and on () (count(master) > 0)", {'free{instance="a"}': 30}),
    ("free or reserve", {'free{instance="a"}': 30}),
    (
        "(max by (shard) (late and on (instance, shard) master == 1) or max by (shard) (late)) > 2",
        {'{shard="0"}': 3, '{shard="1"}': 90},
    ),
    (
        "max by (shard) (time() - at) > 180 and on (shard) max by (shard) (master) == 1",
        {'{shard="0"}': 500},
    ),
    ("min by (shard) (time() - at) > 180", {}),
    # Histograms.
    ("histogram_quantile(0.5, took_bucket)", {"{}": 0.5}),
    ("histogram_quantile(0.3, took_bucket)", {"{}": 0.3}),
    ("histogram_quantile(0.05, took_bucket)", {"{}": 0.05}),
    ("histogram_quantile(0.99, took_bucket)", {"{}": 1}),
    ("histogram_quantile(0.8, sum by (le) (rate(took_bucket[5m])))", {"{}": 0.875}),
    ("histogram_quantile(0.8, sum by (le) (rate(took_bucket[1m])))", {}),
]


def labels(text: str) -> Labels:
    """The labels of a series as it is written."""
    name, _, rest = text.partition("{")
    found = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    return labels_of(name, found) if name else frozenset(found.items())


@pytest.fixture(scope="module")
def samples() -> Samples:
    found = Samples()
    for series, text in SERIES.items():
        for at, value in enumerate(text.split()):
            if value != "_":
                found.add(labels(series), at * EVERY_S, None if value == "stale" else float(value))
    return found


@pytest.mark.parametrize(("expression", "wanted"), VALUES)
def test_an_expression_has_the_value_that_prometheus_computes(
    samples: Samples, expression: str, wanted: dict[str, float]
) -> None:
    found = evaluate(expression, samples, NOW_S)
    assert isinstance(found, dict)
    assert found == pytest.approx({labels(text): value for text, value in wanted.items()})


def test_the_quantile_of_a_histogram_without_observations_is_not_a_number(samples: Samples) -> None:
    found = evaluate("histogram_quantile(0.8, rate(took_bucket[5m]))", samples, 8 * EVERY_S)
    assert isinstance(found, dict)
    assert [math.isnan(value) for value in found.values()] == [True]


@pytest.mark.parametrize(
    "expression",
    [
        "grows offset 5m",
        "grows @ 5",
        "grows == bool 1",
        "sum without (shard) (grows)",
        "topk(1, grows)",
        "avg(grows)",
        "avg_over_time(grows[5m])",
        "rate(grows[5m:1m])",
        "late > on (shard) group_left () free",
        "-grows",
        "grows / 2",
        "grows ^ 2",
        '{shard="0"}',
        "1 > bool 0",
        "histogram_quantile(2, took_bucket)",
    ],
)
def test_what_the_evaluator_does_not_know_is_an_error(samples: Samples, expression: str) -> None:
    with pytest.raises(Unsupported):
        evaluate(expression, samples, NOW_S)


@pytest.mark.parametrize(
    "expression", ["free > on () late", "late > on () free", "late - on (shard) late"]
)
def test_series_that_do_not_match_one_to_one_are_an_error(
    samples: Samples, expression: str
) -> None:
    with pytest.raises(Ambiguous):
        evaluate(expression, samples, NOW_S)
