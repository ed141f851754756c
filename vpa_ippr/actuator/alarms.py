"""Waiting that pressure cuts short: the kernel's triggers of the containers that stand under a guard, polled together."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from vpa_ippr.actuator.cgroup import Cgroup
from vpa_ippr.actuator.triggers import READY, PressureTriggers


@runtime_checkable
class Alarming(Protocol):
    """A cgroup whose kernel can wake us."""

    def open_triggers(self) -> PressureTriggers:
        """Armed triggers; none where this kernel or our rights do not allow them."""
        ...


class PressureAlarms:
    """Implements ``ports.Alarms``. Triggers stay armed while their cgroup is named at each wait."""

    def __init__(self) -> None:
        self._armed: dict[int, PressureTriggers] = {}

    def wait(self, cgroups: Sequence[Cgroup], seconds: float) -> bool:
        """Return when one is under pressure, or after ``seconds``; at once where there is nothing to be woken by."""
        self._follow(cgroups)
        poll = select.poll()
        descriptors = [fd for triggers in self._armed.values() for fd in triggers.filenos()]
        for fd in descriptors:
            poll.register(fd, READY)
        if not descriptors:
            return False
        events = poll.poll(max(0.0, seconds) * 1000)
        fired = [triggers.fired(events) for triggers in self._armed.values()]  # all: each closes what is gone
        return any(fired)

    def close(self) -> None:
        """Disarm all."""
        self._follow(())

    def _follow(self, cgroups: Sequence[Cgroup]) -> None:
        wanted = {cgroup.identity(): cgroup for cgroup in cgroups if isinstance(cgroup, Alarming)}
        for identity in self._armed.keys() - wanted.keys():
            self._armed.pop(identity).close()
        for identity, cgroup in wanted.items():
            if identity not in self._armed:
                self._armed[identity] = cgroup.open_triggers()
