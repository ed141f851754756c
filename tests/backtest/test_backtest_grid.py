"""From usage to a grid: slots, gaps, pods of one workload, sources."""

import numpy as np
import pytest
from backtest_support import DAY, NAN, START, fleet

from vpa_ippr.api.series import ContainerRef, Resource, Usage, UsageSeries, WorkloadRef
from vpa_ippr.backtest.grid import fleet_of, pooled


def series(times, values, resource=Resource.CPU, pod="web-0", namespace="shop"):
    return UsageSeries(ContainerRef(namespace, pod, "app"), resource, START + np.array(times, float), np.array(values, float))


def row(*parts, resource=Resource.CPU, **options):
    return fleet_of(Usage(tuple(parts)), resource, **options).usage[0]


@pytest.mark.parametrize(
    ("times", "values", "resource", "expected"),
    [
        ([0, 300, 600], [1, 2, 3], Resource.CPU, [1, 2, 3]),
        ([0, 300, 900], [1, 2, 3], Resource.CPU, [1, 2, NAN, 3]),
        ([0, 310, 590, 905], [1, 2, 3, 4], Resource.CPU, [1, 2, 3, 4]),
        ([0, 60, 120, 180, 240, 300, 360], [1, 2, 3, 4, 5, 6, 8], Resource.CPU, [3, 7]),
        ([0, 60, 120, 180, 240, 300, 360], [1, 9, 3, 4, 5, 6, 8], Resource.MEMORY, [9, 8]),
        ([0, 900, 1800], [1, 2, 3], Resource.CPU, [1, NAN, NAN, 2, NAN, NAN, 3]),
        ([0], [5], Resource.CPU, [5]),
    ],
    ids=["on-the-grid", "gap", "late-and-early", "finer-cpu-is-a-mean", "finer-memory-is-a-peak", "coarser-leaves-gaps", "one-sample"],
)
def test_slots(times, values, resource, expected):
    np.testing.assert_array_equal(row(series(times, values, resource), resource=resource), expected)


def test_a_finer_grid_on_request():
    np.testing.assert_array_equal(row(series([0, 60, 120], [1, 2, 3]), step_seconds=60.0), [1, 2, 3])


def test_the_pods_of_a_workload_are_one_series_of_the_busiest():
    owners = {("shop", pod): WorkloadRef("shop", "Deployment", "web") for pod in ("web-0", "web-1")}
    usage = Usage((series([0, 300, 600], [1, 5, 1]), series([300, 600, 900], [2, 3, 4], pod="web-1")), owners=owners)
    built = fleet_of(usage, Resource.CPU)
    assert built.names == ("shop/Deployment/web/app",)
    np.testing.assert_array_equal(built.usage, [[1, 5, 3, 4]])


def test_rows_begin_at_their_own_first_sample():
    built = fleet_of(Usage((series([0, 300], [1, 2]), series([9000], [3], pod="late"))), Resource.CPU)
    np.testing.assert_array_equal(built.starts, [START + 9000, START])
    np.testing.assert_array_equal(built.usage, [[3, NAN], [1, 2]])


def test_sources_scale_and_current():
    usage = Usage((series([0], [0.5]), series([0], [1], namespace="bank")))
    key = (WorkloadRef("shop", "Pod", "web-0"), "app")
    plain = fleet_of(usage, Resource.CPU, current={key: 2.0})
    assert plain.sources == ("bank", "shop")
    np.testing.assert_array_equal(plain.current, [NAN, 2])
    scaled = fleet_of(usage, Resource.CPU, source="trace", scale=4.0)
    assert scaled.sources == ("trace", "trace")
    np.testing.assert_array_equal(scaled.usage, [[4], [2]])


def test_cut_after_the_most_days():
    times = np.arange(0, 3 * DAY, 300)
    assert fleet_of(Usage((series(times, times),)), Resource.CPU, most_days=2).slots == 576
    assert fleet_of(Usage((series(times, times),)), Resource.CPU).first_days(1).slots == 288


def test_gaps_are_no_recorded_days():
    built = fleet([[1, NAN, 1, NAN]], step=DAY / 4)
    np.testing.assert_array_equal(built.observed_days, [0.5])


def test_pooled_rows_are_empty_at_their_ends():
    both = pooled([fleet([[1, 2]], sources=["a"]), fleet([[3]], sources=["b"])])
    assert both.sources == ("a", "b")
    np.testing.assert_array_equal(both.usage, [[1, 2], [3, NAN]])
    chosen = both.chosen(np.array([False, True]))
    assert (len(chosen), chosen.sources) == (1, ("b",))


def test_fleets_of_different_kinds_do_not_pool():
    with pytest.raises(ValueError, match="different resources"):
        pooled([fleet([[1]]), fleet([[1]], Resource.MEMORY)])
    with pytest.raises(ValueError, match="steps"):
        pooled([fleet([[1]]), fleet([[1]], step=60)])


def test_no_series_of_that_resource():
    built = fleet_of(Usage((series([0], [1]),)), Resource.MEMORY)
    assert (len(built), built.slots) == (0, 0)
