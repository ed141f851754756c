"""From usage to recommendations: grouping, what is left out, what is explained, and what must hold for any data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import ContainerRef, Finding, OomKill, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.instances import STALE_OOM, feed
from vpa_ippr.recommend.pipeline import recommend
from vpa_ippr.usage.container import DAY_SECONDS

CLASSIC = load_catalogue()["vpa-classic"]
T = 1_767_225_600.0
GIB = 2**30
WEB = WorkloadRef("shop", "Deployment", "web")


def series(resource, values, pod="web-1", container="app", start=T, step=60.0):
    return UsageSeries(
        ContainerRef("shop", pod, container), resource, start + step * np.arange(len(values)), np.asarray(values, dtype=float)
    )


def cpu(values, **where):
    return series(Resource.CPU, values, **where)


def memory(values, **where):
    return series(Resource.MEMORY, values, **where)


def usage(*all_series, ooms=(), findings=()):
    pods = {(one.container.namespace, one.container.pod) for one in all_series}
    return Usage(all_series, ooms=ooms, owners=dict.fromkeys(pods, WEB), findings=findings)


def only(found):
    (recommendation,) = found
    return recommendation


def test_replicas_are_one_recommendation():
    data = usage(cpu([1.0] * 60), cpu([1.0] * 60, pod="web-2"), memory([GIB] * 60), memory([2 * GIB] * 60, pod="web-2"))
    found = only(recommend(data, CLASSIC, T + DAY_SECONDS))
    assert (found.workload, found.container) == (WEB, "app")
    assert found.explanation.samples == 120
    assert found.target.memory_bytes >= 2 * GIB


def test_a_pod_without_an_owner_is_its_own_workload():
    found = only(recommend(Usage((cpu([1.0] * 5),)), CLASSIC, T + DAY_SECONDS))
    assert found.workload == WorkloadRef("shop", "Pod", "web-1")


def test_the_pod_minimum_is_shared_by_containers_in_order_of_name():
    data = usage(*(one([0.0] * 60, container=name) for name in ("b", "a") for one in (cpu, memory)))
    found = recommend(data, CLASSIC, T + DAY_SECONDS)
    assert [one.container for one in found] == ["a", "b"]
    assert {one.target for one in found} == {Amounts(12, 131_072_000)}


@pytest.mark.parametrize(("one", "unset"), [(cpu, "memory_bytes"), (memory, "cpu_millicores")], ids=["cpu only", "memory only"])
def test_a_resource_without_samples_is_left_out(one, unset):
    found = only(recommend(usage(one([1e9 if one is memory else 1.0] * 1440)), CLASSIC, T + DAY_SECONDS))
    for amounts in (found.target, found.lower_bound, found.upper_bound, found.uncapped_target):
        assert getattr(amounts, unset) is None
    assert found.confidence == pytest.approx(1.0, abs=1e-3)


def test_samples_after_the_moment_asked_for_do_not_count():
    data = usage(cpu([0.1] * 60 + [9.0] * 600), ooms=(OomKill(ContainerRef("shop", "web-1", "app"), T + 7200, 9 * GIB),))
    assert recommend(data, CLASSIC, T + 59 * 60) == recommend(usage(cpu([0.1] * 60)), CLASSIC, T + 59 * 60)


@pytest.mark.parametrize(("days", "count"), [(7.9, 1), (8.0, 0)], ids=["still known", "forgotten"])
def test_a_container_without_samples_for_eight_days_is_forgotten(days, count):
    assert len(recommend(usage(cpu([1.0])), CLASSIC, T + days * DAY_SECONDS)) == count


def test_an_oom_kill_counts_in_its_place_in_time():
    ref = ContainerRef("shop", "web-1", "app")
    data = usage(memory([GIB] * (3 * 1440)), ooms=(OomKill(ref, T + 600.0, 4 * GIB),))
    found = only(recommend(data, CLASSIC, T + 4 * DAY_SECONDS))
    assert found.explanation.oom_kills == 1
    # One of three daily peaks, and the oldest: the median does not see it, the 90th percentile does.
    assert found.lower_bound.memory_bytes < 2 * GIB < 4.8 * GIB < found.target.memory_bytes


def test_an_oom_kill_alone_gives_memory():
    found = only(recommend(Usage((), ooms=(OomKill(ContainerRef("shop", "p", "c"), T, GIB),)), CLASSIC, T + 60))
    assert found.target.memory_bytes > 1.2 * GIB
    assert found.target.cpu_millicores is None


def test_an_oom_kill_that_is_too_old_is_told():
    ref = ContainerRef("shop", "web-1", "app")
    rules = CLASSIC.usage_rules()
    fed, _ = feed({}, usage(memory([GIB], start=T + 2 * DAY_SECONDS)), lambda _: rules, until=T + 9 * DAY_SECONDS)
    again, findings = feed(fed, Usage((), ooms=(OomKill(ref, T, GIB),)), lambda _: rules, until=T + 9 * DAY_SECONDS)
    assert [(finding.reason, finding.subject, finding.count) for finding in findings] == [(STALE_OOM, "shop/web-1/app", 1)]
    assert again[ref].window == fed[ref].window


def test_the_explanation_names_what_drove_each_value():
    finding = Finding("Gap", "shop/web-2/app", 3, "three gaps")
    other = Finding("Gap", "shop/other/app", 1, "not ours")
    data = usage(
        cpu([2.0] * 60),
        cpu([0.1] * 60, pod="web-2"),
        memory([GIB] * 60),
        memory([3 * GIB] * 60, pod="web-2"),
        findings=(finding, other),
    )
    why = only(recommend(data, CLASSIC, T + DAY_SECONDS)).explanation
    assert (why.profile, why.forecaster) == ("vpa-classic", "decaying-histogram")
    assert [(driver.resource, driver.quantile, driver.pod) for driver in why.drivers] == [
        (Resource.CPU, 0.9, "web-1"),
        (Resource.MEMORY, 0.9, "web-2"),
    ]
    assert why.drivers[1].value >= 3 * GIB
    assert (why.first_sample, why.last_sample) == (T, T + 59 * 60)
    assert why.findings == (finding,)


def test_unknown_is_not_recommended():
    assert recommend(Usage(()), CLASSIC, T) == []
    assert recommend(usage(cpu([])), CLASSIC, T) == []


VALUES = st.lists(st.floats(0, 8), min_size=1, max_size=60)


@settings(max_examples=40)
@given(VALUES, VALUES, st.floats(1.0, 50_000.0))
def test_bounds_are_in_order(first, second, step):
    data = usage(
        cpu(first, step=step),
        cpu(second, pod="web-2", step=step),
        memory(np.array(first) * 1e9, step=step),
        memory([v * 1e9 for v in second]),
    )
    for found in recommend(data, CLASSIC, T + 60 * step):
        for resource in Resource:
            bounds = [amounts.get(resource) for amounts in (found.lower_bound, found.target, found.upper_bound)]
            assert None in bounds or bounds == sorted(bounds)


@settings(max_examples=40)
@given(VALUES, st.floats(0, 4))
def test_more_use_never_means_less(values, more):
    low = only(recommend(usage(cpu(values), memory([v * 1e9 for v in values])), CLASSIC, T + DAY_SECONDS))
    high = only(recommend(usage(cpu([v + more for v in values]), memory([(v + more) * 1e9 for v in values])), CLASSIC, T + DAY_SECONDS))
    for resource in Resource:
        for bound in ("target", "lower_bound", "upper_bound"):
            assert getattr(high, bound).get(resource) >= getattr(low, bound).get(resource)


@settings(max_examples=30)
@given(VALUES, st.lists(st.integers(0, 3_000_000), max_size=4), st.floats(1.0, 50_000.0))
def test_feeding_in_parts_gives_the_same_recommendation(values, moments, step):
    rules = CLASSIC.usage_rules()
    ref = ContainerRef("shop", "web-1", "app")
    end = T + step * len(values)
    ooms = tuple(OomKill(ref, T + 100_000.0 * index, GIB) for index in range(3))
    data = usage(cpu(values, step=step), memory([v * 1e9 for v in values], step=step), ooms=ooms)
    whole, _ = feed({}, data, lambda _: rules, until=end)
    parts, after = {}, -np.inf
    for moment in [*sorted(min(T + moment, end) for moment in moments), end]:
        parts, _ = feed(parts, data, lambda _: rules, after=after, until=moment)
        after = moment
    assert parts[ref].cpu.weights.tolist() == whole[ref].cpu.weights.tolist()
    assert parts[ref].memory().weights.tolist() == whole[ref].memory().weights.tolist()
    assert parts[ref].window == whole[ref].window
