from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.api.series import ContainerRef, WorkloadRef
from vpa_ippr.report.model import Current
from vpa_ippr.report.usage import current_by_workload, most_common

SMALL, LARGE = ContainerResources(Amounts(100, 1000)), ContainerResources(Amounts(200, 2000))
WEB = WorkloadRef("shop", "Deployment", "web")


def test_pods_of_a_workload_are_one_entry_with_what_most_of_them_have():
    resources = {ContainerRef("shop", f"web-{n}", "app"): found for n, found in enumerate((LARGE, SMALL, SMALL))}
    owners = {("shop", f"web-{n}"): WEB for n in range(3)}
    assert current_by_workload(resources, owners) == {(WEB, "app"): Current(SMALL, 3)}


def test_containers_and_namespaces_are_kept_apart():
    resources = {ContainerRef("shop", "web-0", "app"): SMALL, ContainerRef("shop", "web-0", "proxy"): LARGE}
    resources |= {ContainerRef("bank", "web-0", "app"): LARGE}
    other = WorkloadRef("bank", "Pod", "web-0")
    assert current_by_workload(resources, {("shop", "web-0"): WEB}) == {
        (WEB, "app"): Current(SMALL, 1),
        (WEB, "proxy"): Current(LARGE, 1),
        (other, "app"): Current(LARGE, 1),
    }


def test_of_equally_common_ones_the_largest_counts():
    more_cpu = ContainerResources(Amounts(300, 1000))
    assert most_common({SMALL: 2, LARGE: 2, ContainerResources(): 1}) == LARGE
    assert most_common({SMALL: 1, more_cpu: 1}) == more_cpu
    assert most_common({ContainerResources(): 1}) == ContainerResources()
