"""The wait between two looks, cut short by pressure: pipes stand in for the kernel's triggers, as poll sees them."""

import os
import select
import threading

import pytest
from actuator_fakes import FakeKernel, Workload, World

from vpa_ippr.actuator import alarms as alarms_module
from vpa_ippr.actuator.alarms import PressureAlarms
from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.triggers import Pressure, PressureTriggers
from vpa_ippr.api.shrink import Phase


class Trigger:
    """A cgroup with one trigger that a test fires."""

    def __init__(self, identity=1):
        self.inode, self.opened = identity, 0
        self.reader, self.writer = os.pipe()

    def identity(self):
        return self.inode

    def open_triggers(self):
        self.opened += 1
        return PressureTriggers({os.dup(self.reader): Pressure.MEMORY_SOME})

    def fire(self):
        os.write(self.writer, b"!")


@pytest.fixture
def alarms(monkeypatch):
    # A pipe is ready to be read where a trigger has priority data.
    monkeypatch.setattr(alarms_module, "READY", select.POLLIN)
    watching = PressureAlarms()
    yield watching
    watching.close()


def test_without_anything_to_watch_it_does_not_wait(alarms):
    assert alarms.wait([], 3600) is False
    assert alarms.wait([FakeKernel(Workload())], 3600) is False


def test_pressure_ends_the_wait(alarms):
    calm, pressed = Trigger(1), Trigger(2)
    pressed.fire()
    assert alarms.wait([calm, pressed], 3600) is True


def test_calm_waits_it_out(alarms):
    assert alarms.wait([Trigger()], 0.01) is False


def test_triggers_stay_armed_and_go_with_their_cgroup(alarms):
    one, other = Trigger(1), Trigger(2)
    for _ in range(3):
        alarms.wait([one, other], 0)
    assert (one.opened, other.opened) == (1, 1)
    one.fire()
    assert alarms.wait([other], 0) is False
    alarms.wait([one], 0)
    assert one.opened == 2


def test_a_cgroup_that_has_gone_wakes_once_and_then_no_more(alarms):
    gone = Trigger()
    os.close(gone.writer)
    assert alarms.wait([gone], 3600) is True
    assert alarms.wait([gone], 0) is False
    assert gone.opened == 1


class Recorded:
    """Alarms that ring each time, or never; after 40 of them the agent is stopped."""

    def __init__(self, *, ring):
        self.calls, self.stop, self._ring, self.is_closed = [], threading.Event(), ring, False

    def wait(self, cgroups, seconds):
        self.calls.append(([cgroup.identity() for cgroup in cgroups], seconds))
        if len(self.calls) >= 40:
            self.stop.set()
        return self._ring

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize("ring", [True, False], ids=["pressed", "calm"])
def test_the_agent_looks_at_once_when_an_alarm_rings(state_dir, ring):
    policy = Policy(observe_seconds=5, settle_seconds=2, stability_seconds=5, start_jitter_seconds=0)
    alarms = Recorded(ring=ring)
    world = World(state_dir, policy, alarms=alarms)
    kernel = world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    world.run_until(world.ask(256), Phase.SHRINKING)
    began, looks = world.clock.time, []
    read = kernel.read
    kernel.read = lambda: (looks.append(world.clock.time), read())[1]
    world.agent.run(alarms.stop)
    assert {tuple(watched) for watched, _ in alarms.calls} == {(kernel.inode,)}
    assert all(seconds <= policy.tick_seconds for _, seconds in alarms.calls)
    assert len(looks) >= 40
    assert (world.clock.time == began) is ring
    assert alarms.is_closed
    assert kernel.high is None


def test_what_is_not_touched_is_not_watched(state_dir):
    alarms = Recorded(ring=False)
    world = World(state_dir, Policy(start_jitter_seconds=0, observe_seconds=300), alarms=alarms)
    world.add(FakeKernel(Workload(anon=lambda _t: 60, cold=300)))
    world.ask(256)
    world.agent.run(alarms.stop)
    assert [watched for watched, _ in alarms.calls if watched] == []
