"""What a program was told to use counts (kernel.md 3.5, JVM and Go/Node rows): it read the limit once and will grow into it."""

import pytest
from actuator_fakes import FakeKernel, Workload, World

from vpa_ippr.actuator.heaps import Heap, declared_heap, refuse_below
from vpa_ippr.actuator.policy import GIB, MIB, Policy
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.pod_launch import ContainerLaunch, EnvVar, PodLaunch, _Spec
from vpa_ippr.api.shrink import Phase

POLICY = Policy()
POD = ObjectKey("default", "web-1")


def launch(*args, command=(), **env):
    return ContainerLaunch("app", list(command), list(args), [EnvVar(name, value) for name, value in env.items()])


@pytest.mark.parametrize(
    ("given", "setting", "amount"),
    [
        (launch("-Xmx512m", command=["java"]), "-Xmx512m", 512 * MIB),
        (launch("-jar", "app.jar", "-Xmx2G"), "-Xmx2G", 2 * GIB),
        (launch("-c", "exec java -Xms64m -Xmx1g -jar x.jar", command=["sh"]), "-Xmx1g", GIB),
        (launch("-c", 'java "-Xmx300m" -jar x.jar', command=["sh"]), "-Xmx300m", 300 * MIB),
        (launch(JAVA_TOOL_OPTIONS="-XX:+UseZGC -Xmx700m"), "-Xmx700m", 700 * MIB),
        (launch("-Xmx1g", "-Xmx256m"), "-Xmx256m", 256 * MIB),
        (launch("-Xmx268435456"), "-Xmx268435456", 256 * MIB),
        (launch("-XX:MaxHeapSize=256m"), "-Xmx256m", 256 * MIB),
        (launch("-XX:MaxRAMPercentage=75.0"), "-XX:MaxRAMPercentage=75.0", 768 * MIB),
        (launch(NODE_OPTIONS="--max-old-space-size=4096"), "--max-old-space-size=4096", 4 * GIB),
        (launch("--max_old_space_size", "300", command=["node"]), "--max-old-space-size=300", 300 * MIB),
        (launch(GOMEMLIMIT="750MiB"), "GOMEMLIMIT=750MiB", 750 * MIB),
        (launch(GOMEMLIMIT="1073741824"), "GOMEMLIMIT=1073741824", GIB),
        (launch("-Xmx100m", GOMEMLIMIT="1GiB"), "GOMEMLIMIT=1GiB", GIB),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_are_read(given, setting, amount):
    assert declared_heap(given, GIB) == Heap(setting, amount)


@pytest.mark.parametrize(
    "given",
    [
        launch(),
        launch("-Xmxlots"),
        launch("--my-Xmx512m"),
        launch(GOMEMLIMIT="off"),
        launch(GOMEMLIMIT=""),
        launch(SOME_LIMIT="750MiB"),
        launch("-Xss512k", "-Xmn200m"),
    ],
)
def test_what_says_nothing_of_a_heap(given):
    assert declared_heap(given, GIB) is None


def test_a_share_of_no_limit_is_nothing():
    assert declared_heap(launch("-XX:MaxRAMPercentage=75"), None) is None


def test_the_heap_must_fit_with_the_margin():
    heap = Heap("-Xmx256m", 256 * MIB)
    verdict = refuse_below(heap, 256 * MIB, POLICY)
    assert (verdict.phase, verdict.reason) == (Phase.REFUSED, "DeclaredHeap")
    assert refuse_below(heap, verdict.floor_bytes, POLICY) is None
    assert refuse_below(heap, verdict.floor_bytes - POLICY.page_bytes, POLICY) is not None


@pytest.mark.parametrize(
    ("respects", "heap", "phase"),
    [(True, "-Xmx400m", Phase.REFUSED), (True, "-Xmx100m", Phase.DONE), (False, "-Xmx400m", Phase.DONE)],
    ids=["above", "below", "not-respected"],
)
def test_the_agent_asks_before_it_touches(state_dir, respects, heap, phase):
    world = World(state_dir, Policy(respect_declared_heap=respects))
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    world.api.launches[POD] = PodLaunch(ObjectMeta(name="web-1", uid=world.pod_uid("web-1")), _Spec([launch(heap)]))
    status = world.run_until(world.ask(256))
    assert status.phase is phase
    assert phase is Phase.DONE or (status.reason, kernel.written) == ("DeclaredHeap", [])


def test_an_api_that_is_lost_meanwhile_is_asked_again(state_dir):
    world = World(state_dir)
    world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    uid = world.ask(256)
    answer, refused = world.api.get_launch, []

    def refuse_once(key):
        if not refused:
            refused.append(key)
            world.api.down = True
            try:
                return answer(key)
            finally:
                world.api.down = False
        return answer(key)

    world.api.get_launch = refuse_once
    assert world.run_until(uid).phase is Phase.DONE
    assert refused
