import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import UsageError
from vpa_ippr.sandbox.podamounts import Totals
from vpa_ippr.sandbox.podfit import (
    Deferred,
    Feasible,
    Infeasible,
    NodeSettings,
    is_critical,
    kubelet_feasibility,
    pending_order,
    requests_allocated,
    requests_desired,
    requests_for_fit,
)
from vpa_ippr.sandbox.versions import DEFAULT_PROFILE, PROFILES, profile

MIB = 2**20
NODE = Totals(2000, 4096 * MIB)
NOTHING = Totals(0, 0)


def amounts(cpu, memory):
    return {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}


def a_pod(desired=(100, 100), allocated=None, actual=None, limits=None, conditions=(), name="p", **spec):
    """A pod of one container; amounts are millicores and MiB."""
    resources = {"requests": amounts(*desired), **({"limits": amounts(*limits)} if limits else {})}
    status = {"name": "c"}
    if allocated:
        status["allocatedResources"] = amounts(*allocated)
    if actual:
        status["resources"] = {"requests": amounts(*actual), **({"limits": amounts(*limits)} if limits else {})}
    return {
        "metadata": {"name": name, "namespace": "d"},
        "spec": {"containers": [{"name": "c", "image": "i:1", "resources": resources}], **spec},
        "status": {"conditions": list(conditions), "containerStatuses": [status] if allocated or actual else []},
    }


def pending(reason, since="2026-01-01T00:00:00Z"):
    return {"type": "PodResizePending", "status": "True", "reason": reason, "lastTransitionTime": since}


class TestRequestsForFit:
    @pytest.mark.parametrize(
        ("pod", "expected"),
        [
            pytest.param(a_pod((100, 100)), (100, 100), id="not started"),
            pytest.param(a_pod((100, 900), (300, 200), (200, 300)), (300, 900), id="largest of the three for each resource"),
            pytest.param(a_pod((100, 900), (300, 200), (200, 300), conditions=[pending("Deferred")]), (300, 900), id="deferred counts"),
            pytest.param(a_pod((100, 900), (300, 200), (200, 300), conditions=[pending("Infeasible")]), (300, 300), id="infeasible not"),
            pytest.param(a_pod((100, 900), conditions=[pending("Infeasible")]), (100, 900), id="nothing reported"),
        ],
    )
    def test_container(self, pod, expected):
        assert requests_for_fit(pod) == Totals(expected[0], expected[1] * MIB)

    def test_allocated_and_desired_are_told_apart(self):
        pod = a_pod((500, 500), (300, 200), (200, 300))
        assert requests_allocated(pod) == Totals(300, 200 * MIB)
        assert requests_desired(pod) == Totals(500, 500 * MIB)

    def test_pod_level_requests_stand_for_the_containers(self):
        pod = a_pod((100, 100), (100, 100), resources={"requests": amounts(800, 500)})
        pod["status"]["allocatedResources"] = amounts(900, 400)
        assert requests_for_fit(pod) == Totals(900, 500 * MIB)
        assert requests_allocated(pod) == Totals(900, 400 * MIB)

    @given(*[st.tuples(st.integers(0, 4000), st.integers(0, 4000)) for _ in range(3)])
    def test_never_less_than_what_is_allocated_or_desired(self, desired, allocated, actual):
        pod = a_pod(desired, allocated, actual)
        counted = requests_for_fit(pod)
        for amount in (requests_desired(pod), requests_allocated(pod), Totals(actual[0], actual[1] * MIB)):
            assert counted.cpu_millicores >= amount.cpu_millicores
            assert counted.memory_bytes >= amount.memory_bytes


def decide(pod, others=NOTHING, allocatable=NODE, version="1.36", **settings):
    return kubelet_feasibility(pod, others, allocatable, profile(version), NodeSettings(**settings))


class TestFeasibility:
    def test_fits_to_the_last_byte(self):
        assert decide(a_pod((1000, 1096)), Totals(1000, 3000 * MIB)) == Feasible()

    def test_cpu_beside_others(self):
        message = "Node didn't have enough resource: cpu, requested: 1001, used: 1000, capacity: 2000"
        assert decide(a_pod((1001, 5000)), Totals(1000, 0)) == Deferred(message, "OutOfcpu")

    def test_memory_beside_others(self):
        message = f"Node didn't have enough resource: memory, requested: {2 * MIB}, used: {4095 * MIB}, capacity: {4096 * MIB}"
        assert decide(a_pod((1, 2)), Totals(0, 4095 * MIB)) == Deferred(message, "OutOfmemory")

    def test_a_resource_that_is_not_requested_is_not_looked_at(self):
        assert decide(a_pod((0, 100)), Totals(5000, 0)) == Feasible()

    @pytest.mark.parametrize("version", ["1.33", "1.34", "1.35"])
    @pytest.mark.parametrize(
        ("desired", "shortage"),
        [
            ((2001, 100), "cpu, requested: 2001, capacity: 2000"),
            ((100, 4097), f"memory, requested: {4097 * MIB}, capacity: {4096 * MIB}"),
            ((2001, 4097), f"memory, requested: {4097 * MIB}, capacity: {4096 * MIB}"),
        ],
        ids=["cpu", "memory", "both name memory"],
    )
    def test_larger_than_the_node_was_infeasible(self, version, desired, shortage):
        assert decide(a_pod(desired), version=version) == Infeasible(f"Node didn't have enough capacity: {shortage}")

    def test_larger_than_the_node_is_deferred_from_1_36(self):
        assert isinstance(decide(a_pod((2001, 100))), Deferred)

    def test_static_pods(self):
        pod = a_pod()
        pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
        assert decide(pod, version="1.35") == Infeasible("In-place resize of static-pods is not supported")
        assert decide(pod, version="1.36") == Feasible()
        assert is_critical(pod)

    @pytest.mark.parametrize(
        ("version", "settings", "allocated", "message"),
        [
            ("1.33", {"static_cpu_manager": True}, (200, 50), "alongside CPU Manager static policy"),
            ("1.33", {"static_memory_manager": True}, (50, 200), "alongside Memory Manager static policy"),
            ("1.34", {"static_cpu_manager": True}, (50, 200), 'alongside CPU Manager policy "static"'),
            ("1.34", {"static_cpu_manager": True}, (200, 50), None),
            ("1.36", {"static_memory_manager": True}, (200, 50), 'alongside Memory Manager policy "Static"'),
            ("1.36", {"static_memory_manager": True}, (50, 200), None),
        ],
    )
    def test_guaranteed_pods_beside_static_managers(self, version, settings, allocated, message):
        pod = a_pod((200, 200), allocated, allocated, limits=(200, 200))
        decision = decide(pod, version=version, **settings)
        expected = Feasible() if message is None else Infeasible(f"Resize is infeasible for Guaranteed Pods {message}")
        assert decision == expected

    def test_static_managers_leave_burstable_pods_alone(self):
        assert decide(a_pod((200, 200), (100, 100)), static_cpu_manager=True, static_memory_manager=True) == Feasible()

    @pytest.mark.parametrize(
        ("pod", "blocked"),
        [
            pytest.param(a_pod((100, 200), (100, 100), (100, 100), limits=(500, 500)), True, id="memory request changes"),
            pytest.param(a_pod((200, 100), (100, 100), (100, 100), limits=(500, 500)), False, id="cpu request changes"),
            pytest.param(a_pod((200, 200), (100, 100), (100, 100), limits=(200, 200)), False, id="guaranteed"),
            pytest.param(a_pod((100, 200), (100, 100), limits=(500, 500), priority=2_000_000_000), False, id="critical"),
            pytest.param(a_pod((100, 200)), False, id="not started"),
        ],
    )
    def test_swap(self, pod, blocked):
        expected = Infeasible("In-place resize of containers with swap is not supported.") if blocked else Feasible()
        assert decide(pod, swap=True) == expected
        assert decide(pod) == Feasible()

    def test_swap_does_not_matter_to_a_container_that_restarts(self):
        pod = a_pod((100, 200), (100, 100), limits=(500, 500))
        pod["spec"]["containers"][0]["resizePolicy"] = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
        assert decide(pod, swap=True) == Feasible()

    @given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 500))
    def test_more_room_never_turns_a_resize_away(self, wanted, used, more):
        decision = decide(a_pod((wanted, 1)), Totals(used, 0))
        if decision == Feasible():
            assert decide(a_pod((wanted, 1)), Totals(used, 0), Totals(NODE.cpu_millicores + more, NODE.memory_bytes)) == Feasible()


def test_pending_order():
    """Each pod beats the next by one rule only, in the order of the rules."""
    early, late = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
    expected = [
        a_pod((50, 100), (100, 100), name="not increasing", conditions=[pending("Deferred", late)]),
        a_pod((200, 100), (100, 100), name="priority", priority=1000, conditions=[pending("Deferred", late)]),
        a_pod((200, 200), (100, 100), name="guaranteed", limits=(200, 200), conditions=[pending("Deferred", late)]),
        a_pod((200, 100), (100, 100), name="oldest", conditions=[pending("Deferred", early)]),
        a_pod((200, 100), (100, 100), name="later", conditions=[pending("Deferred", late)]),
        a_pod((200, 100), (100, 100), name="new"),
    ]
    assert pending_order(reversed(expected)) == expected


class TestProfiles:
    def test_an_unknown_version_names_the_known_ones(self):
        with pytest.raises(UsageError, match=r"'1\.20' is not known .* 1\.33, 1\.34, 1\.35, 1\.36, 1\.37"):
            profile("1.20")

    def test_the_default_is_1_36(self):
        assert profile("1.36") is DEFAULT_PROFILE

    @pytest.mark.parametrize(
        ("version", "events"),
        [("1.33", 0), ("1.34", 1), ("1.35", 5), ("1.36", 5), ("1.37", 5)],
    )
    def test_events(self, version, events):
        assert len(PROFILES[version].events) == events
