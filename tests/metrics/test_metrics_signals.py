"""What containers go through, from the queries that are asked to the shares that come of the answers."""

import math

import promql_parser
import pytest

from vpa_ippr.api.signals import Signals
from vpa_ippr.metrics.signals import read_signals


class Prometheus:
    """Answers by the metric that a query names, and keeps the queries."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __call__(self, query, at):
        self.asked.append((query, at))
        return next((answer for metric, answer in self.answers.items() if metric in query), {})


def test_each_container_gets_its_shares():
    app, proxy = ("web-0", "app"), ("web-1", "proxy")
    prometheus = Prometheus(cfs_throttled={app: 0.4}, pressure_cpu={app: 0.1, proxy: 0.2}, pressure_memory={proxy: 0.05, app: math.nan})
    assert read_signals(prometheus, "shop", ["web-0", "web-1"], 1000.0, 600.0) == {
        "web-0": {"app": Signals(cpu_throttled=0.4, cpu_pressure=0.1, memory_pressure=None)},
        "web-1": {"proxy": Signals(cpu_throttled=None, cpu_pressure=0.2, memory_pressure=0.05)},
    }


def test_what_is_not_measured_is_not_there():
    assert read_signals(Prometheus(), "shop", ["web-0"], 1000.0, 600.0) == {}


@pytest.mark.parametrize(("measured", "share"), [(1.2, 1.0), (-0.1, 0.0), (math.inf, None)])
def test_rates_that_are_extrapolated_stay_shares(measured, share):
    found = read_signals(Prometheus(pressure_cpu={("web-0", "app"): measured}), "shop", ["web-0"], 1000.0, 600.0)
    assert found["web-0"]["app"].cpu_pressure == share


def test_every_query_is_promql_about_these_pods_and_this_time():
    prometheus = Prometheus()
    read_signals(prometheus, "shop", ['we"b', "a.b"], 1000.0, 599.7, ('cluster="a"',))
    assert [at for _, at in prometheus.asked] == [1000.0] * 3
    for query, _ in prometheus.asked:
        promql_parser.parse(query)
        assert "[600s]" in query
        assert 'namespace="shop",pod=~"we\\"b|a\\\\.b",container!="",cluster="a"' in query
