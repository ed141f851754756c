"""Runtimes that refuse, statistics with gaps, quotas that systemd rounds: what a resize makes of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulated_cluster import Cluster, amounts, container, steady

from vpa_ippr.api.errors import UsageError
from vpa_ippr.sandbox.pagecache import MIB
from vpa_ippr.sandbox.runtimefaults import TIMEOUT_MESSAGE, MemoryCheck, NodeFaults, RuntimeFault, UsageGap

Json = dict[str, Any]
IN_PROGRESS = "PodResizeInProgress"
BURSTABLE = {"requests": amounts("100m", "128Mi"), "limits": amounts("200m", "256Mi")}


def error_of(cluster: Cluster) -> str | None:
    condition = cluster.condition("web", IN_PROGRESS)
    return condition["message"] if condition is not None and condition.get("reason") == "Error" else None


def fail(cluster: Cluster, *faults: RuntimeFault, gaps: tuple[UsageGap, ...] = ()) -> None:
    cluster.simulation.set_node_faults("n1", faults, gaps)


class TestCalls:
    def test_the_next_calls_fail_and_the_one_after_goes_through(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            fail(cluster, RuntimeFault("device busy", "app", count=2))
            cluster.resize("web", limits={"cpu": "300m"})
            cluster.run(14)
            assert error_of(cluster) == "device busy"
            assert not cluster.simulation.node_state("n1")["faults"]["runtime"]
            cluster.run(12)
            assert cluster.condition("web", IN_PROGRESS) is None
            assert cluster.status("web")["resources"]["limits"]["cpu"] == "300m"
            assert cluster.status("web")["restartCount"] == 0

    def test_only_the_container_that_is_meant_fails_and_what_went_before_stays(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), container("other", **BURSTABLE))
            fail(cluster, RuntimeFault("no", "other", count=None))
            for name in ("app", "other"):
                cluster.resize("web", container=name, limits={"memory": "300Mi"})
            cluster.run(40)
            assert error_of(cluster) == "no"
            assert [cluster.status("web", index)["resources"]["limits"]["memory"] for index in (0, 1)] == ["300Mi", "256Mi"]
            fail(cluster)
            cluster.run(15)
            assert cluster.status("web", 1)["resources"]["limits"]["memory"] == "300Mi"

    def test_memory_and_cpu_are_two_calls(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            fail(cluster, RuntimeFault("first", count=1), RuntimeFault("second", count=1))
            cluster.resize("web", limits=amounts("300m", "300Mi"))
            cluster.run(1)
            assert error_of(cluster) == "first"
            cluster.run(13)
            assert error_of(cluster) == "second"
            cluster.run(13)
            assert cluster.status("web")["resources"]["limits"] == amounts("300m", "300Mi")

    def test_a_call_that_hangs_fails_when_the_kubelet_gives_up(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            fail(cluster, RuntimeFault(TIMEOUT_MESSAGE, seconds=120))
            cluster.resize("web", limits={"cpu": "300m"})
            cluster.run(119)
            assert cluster.condition("web", IN_PROGRESS) is not None
            assert error_of(cluster) is None
            cluster.run(3)
            assert error_of(cluster) == TIMEOUT_MESSAGE
            cluster.run(14)
            assert cluster.condition("web", IN_PROGRESS) is None

    def test_the_text_may_name_limit_and_usage(self) -> None:
        faults = NodeFaults()
        faults.set([RuntimeFault("{limit} below {usage}", count=2)])
        assert [getattr(faults.next_failure("a", limit, 7), "message", None) for limit in (5, None, 5)] == [
            "5 below 7",
            "max below 7",
            None,
        ]


class TestMemoryCheckOfTheRuntime:
    @pytest.mark.parametrize(
        ("check", "pattern"),
        [
            ("crio", r"memory validation failed: cannot decrease memory limit to 146800640 bytes: current usage is \d+ bytes"),
            ("runc", r"rejecting memory limit 146800640 <= usage \d+"),
        ],
    )
    def test_it_refuses_what_old_statistics_let_through(self, check: str, pattern: str) -> None:
        """The container grows after the last housekeeping: containerd would let the kernel kill it, these refuse."""
        use = {"app": {"anon": [{"kind": "steady", "level": "50Mi"}, {"kind": "shift", "height": "100Mi", "fromSeconds": 78}]}}
        with Cluster(stats_lag_seconds=60, runtime_memory_check=MemoryCheck(check)) as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=80, workload=use)
            cluster.resize("web", limits={"memory": "140Mi"})
            cluster.run(5)
            assert re.fullmatch(pattern, error_of(cluster) or "")
            snapshot = cluster.cgroup("web").read()
            assert snapshot is not None
            assert snapshot.max_bytes == 256 * MIB
            assert cluster.status("web")["restartCount"] == 0

    @pytest.mark.parametrize(("limit", "usage", "refuses"), [(100, 99, False), (100, 100, True), (100, 101, True)])
    def test_bounds(self, limit: int, usage: int, refuses: bool) -> None:
        assert [bool(check.refusal(limit, usage)) for check in MemoryCheck] == [False, refuses, refuses]


class TestGapsInTheStatistics:
    def test_are_transient(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=40, workload={"app": steady("50Mi")})
            fail(cluster, gaps=(UsageGap("app", count=2),))
            cluster.resize("web", limits={"memory": "200Mi"})
            cluster.run(14)
            assert error_of(cluster) == 'cannot decrease memory limits: missing container "app" memory usage'
            cluster.run(14)
            assert cluster.condition("web", IN_PROGRESS) is None
            assert cluster.status("web")["resources"]["limits"]["memory"] == "200Mi"

    def test_do_not_concern_an_increase(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE), run=40)
            fail(cluster, gaps=(UsageGap(count=None),))
            cluster.resize("web", limits={"memory": "300Mi"})
            cluster.run(3)
            assert cluster.condition("web", IN_PROGRESS) is None


class TestRoundingOfQuotas:
    @pytest.mark.parametrize(
        ("rounds", "asked", "shown"), [(False, "417m", "417m"), (True, "417m", "420m"), (True, "420m", "420m"), (True, "7m", "7m")]
    )
    def test_shows_in_the_status_and_never_in_the_conditions(self, rounds: bool, asked: str, shown: str) -> None:
        with Cluster(rounds_cpu_quota=rounds) as cluster:
            cluster.create_pod("web", container(requests=amounts("5m", "64Mi"), limits=amounts("8m", "256Mi")))
            cluster.resize("web", limits={"cpu": asked})
            cluster.run(3)
            assert cluster.status("web")["resources"]["limits"]["cpu"] == shown
            assert cluster.condition("web", IN_PROGRESS) is None

    def test_at_the_start_of_a_container_too(self) -> None:
        with Cluster(rounds_cpu_quota=True) as cluster:
            cluster.create_pod("web", container(limits=amounts("411m", "64Mi")))
            assert cluster.status("web")["resources"]["limits"]["cpu"] == "420m"
            assert cluster.status("web")["resources"]["requests"]["cpu"] == "411m"


class TestSettingsAtRunTime:
    def test_swap_that_is_switched_on(self) -> None:
        with Cluster() as cluster:
            cluster.create_pod("web", container(**BURSTABLE))
            cluster.simulation.set_node_settings("n1", {"swap": True})
            cluster.run(1)
            cluster.resize("web", requests={"memory": "130Mi"})
            cluster.run(1)
            condition = cluster.condition("web", "PodResizePending")
            assert condition is not None
            assert condition["message"] == "In-place resize of containers with swap is not supported."

    @pytest.mark.parametrize(
        ("node", "settings", "message"),
        [
            ("n2", {}, "there is no node n2 with a kubelet: n1"),
            ("n1", {"cpu": "3"}, "cpu of node n1 cannot change while it runs"),
            ("n1", {"swap": "maybe"}, "node n1: swap: Expected `bool`"),
        ],
        ids=["node", "size", "type"],
    )
    def test_what_cannot_be_set(self, node: str, settings: Json, message: str) -> None:
        with Cluster() as cluster:
            cluster.run(1)
            with pytest.raises(UsageError, match=re.escape(message)):
                cluster.simulation.set_node_settings(node, settings)
