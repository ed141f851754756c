import numpy as np
import pytest

from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.api.series import ContainerRef
from vpa_ippr.metrics.current import current_resources
from vpa_ippr.metrics.decode import Row

APP = ContainerRef("shop", "web-0", "app")


def row(resource, *values, pod="web-0", container="app"):
    labels = {"pod": pod, "container": container, "resource": resource}
    return Row(labels, np.arange(len(values), dtype=float), np.array(values, dtype=float))


def test_requests_and_limits_in_whole_units():
    found = current_resources("shop", [row("cpu", 0.25), row("memory", 1e9)], [row("memory", 2e9)])
    assert found == {APP: ContainerResources(Amounts(250, 10**9), Amounts(None, 2 * 10**9))}


@pytest.mark.parametrize(("cores", "millicores"), [(0.1, 100), (0.29, 290), (1.001, 1001), (0.0, 0), (0.0004, 0)])
def test_cores_become_the_millicores_that_were_meant(cores, millicores):
    assert current_resources("shop", [row("cpu", cores)], [])[APP].requests == Amounts(millicores)


def test_a_limit_without_a_request_counts():
    assert current_resources("shop", [], [row("cpu", 1)])[APP] == ContainerResources(Amounts(), Amounts(1000))


@pytest.mark.parametrize(
    "odd",
    [row("cpu", np.nan), row("cpu", np.inf), row("cpu", -1), row("cpu"), row("nvidia_com_gpu", 1), Row({}, np.zeros(1), np.ones(1))],
    ids=["nan", "infinite", "negative", "empty", "other-resource", "no-labels"],
)
def test_what_is_no_amount_is_left_out(odd):
    assert current_resources("shop", [odd, row("memory", 5)], []) == {APP: ContainerResources(Amounts(None, 5))}


def test_the_newest_value_counts_and_containers_come_sorted():
    found = current_resources("shop", [row("cpu", 1, 2), row("cpu", 3, pod="api-0"), row("cpu", 4, container="proxy")], [])
    assert [(one.pod, one.container, resources.requests.cpu_millicores) for one, resources in found.items()] == [
        ("api-0", "app", 3000),
        ("web-0", "app", 2000),
        ("web-0", "proxy", 4000),
    ]
