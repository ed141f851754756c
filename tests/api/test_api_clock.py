"""Clocks: what they make of suspends, of a wall clock that is set, and of being stopped."""

import itertools
import threading

import pytest

from vpa_ippr.api.clock import BootClock, boottime_seconds


class Machine:
    """A wall clock that people set, and a boot clock that they cannot."""

    def __init__(self) -> None:
        self.wall, self.boot = 1_800_000_000.0, 5_000.0

    def clock(self) -> BootClock:
        return BootClock(lambda: self.wall, lambda: self.boot)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forth", "back"])
def test_wall_clock_that_is_set_moves_nothing(jump):
    machine = Machine()
    clock = machine.clock()
    began = clock.now()
    assert began == machine.wall
    machine.pass_time(10.0)
    machine.wall += jump
    assert clock.now() == began + 10.0
    clock.resync()
    assert clock.now() == machine.wall
    machine.pass_time(1.0)
    assert clock.now() == machine.wall


def test_boot_clock_counts_through_a_suspend():
    """CLOCK_BOOTTIME goes on in a suspend; so does the deadline."""
    machine = Machine()
    clock = machine.clock()
    began = clock.now()
    machine.pass_time(7200.0)
    assert clock.now() == began + 7200.0


def test_wait_ends_at_its_moment_though_the_event_waits_by_another_clock():
    seconds = itertools.count(0.0, 0.5)
    clock = BootClock(lambda: 100.0, lambda: next(seconds))
    began = clock.now()
    clock.wait_until(began)
    assert clock.wait_until(began) is True


def test_stop_wakes_a_waiter_and_refuses_later_waits():
    clock = BootClock()
    ended: list[bool] = []
    waiter = threading.Thread(target=lambda: ended.append(clock.wait_until(clock.now() + 3600.0)))
    waiter.start()
    clock.stop()
    waiter.join(10.0)
    assert ended == [False]
    assert clock.wait_until(clock.now() - 1.0) is False


def test_the_kernels_clock_only_goes_forth():
    assert 0 < boottime_seconds() <= boottime_seconds()
