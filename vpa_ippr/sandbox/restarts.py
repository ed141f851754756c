"""The life of a kubelet's process: what it has planned, where it may be made to die, and what it finds when it comes back.

Containers, cgroups and the two checkpoints (allocated, actuated) outlive the process; its timers, back-offs, statistics and the conditions
that it has not written yet do not (KEP-1287, Kubelet Restart Analysis).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from vpa_ippr.api.names import POD_RESIZE_IN_PROGRESS, POD_RESIZE_PENDING
from vpa_ippr.sandbox.agenda import Action, Agenda, Ticket
from vpa_ippr.sandbox.podworker import PodWorker, ResizeCondition

Json = dict[str, Any]


class RestartStep(enum.Enum):
    """Where in a resize a kubelet dies."""

    NOW = "now"
    BEFORE_ALLOCATION = "before-allocation-checkpoint"
    AFTER_ALLOCATION = "after-allocation-checkpoint"
    BEFORE_CALL = "before-cri-call"
    AFTER_CALL = "after-cri-call"
    """The runtime has done it, the actuated checkpoint does not say so yet."""
    AFTER_ACTUATION = "after-actuated-checkpoint"
    BEFORE_STATUS = "before-status-patch"
    WHILE_DEFERRED = "while-deferred"


class KubeletStopped(Exception):  # noqa: N818 - unwinds to the process, and is no failure of the sandbox
    """The kubelet's process is no more; nothing that it was about to do happens."""


class KubeletProcess:
    """Plans a kubelet's actions on the agenda, as long as its process lives.

    Args:
        agenda: the simulation's.
        on_stop: called once when the process has died.
    """

    def __init__(self, agenda: Agenda, on_stop: Callable[[], None]) -> None:
        self._agenda = agenda
        self._on_stop = on_stop
        self._life = 0
        self._armed: RestartStep | None = None
        self.is_up = True

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._agenda.now()

    def at(self, moment: float, action: Action) -> Ticket:
        """Do ``action`` at ``moment``, unless the process dies before."""
        life = self._life
        return self._agenda.at(moment, lambda: self.run(action) if life == self._life else None)

    def after(self, seconds: float, action: Action) -> Ticket:
        """Do ``action`` that much later, unless the process dies before."""
        return self.at(self.now() + seconds, action)

    def run(self, action: Action) -> None:
        """Do ``action`` now, if the process lives; it may die of it."""
        if not self.is_up:
            return
        try:
            action()
        except KubeletStopped:
            self.stop()

    def arm(self, step: RestartStep) -> None:
        """Die at the next passing of that step."""
        self._armed = step

    def passes(self, step: RestartStep) -> None:
        """The kubelet comes to a step.

        Raises:
            KubeletStopped: the process was to die here.
        """
        if self._armed is step:
            self._armed = None
            raise KubeletStopped

    def stop(self) -> None:
        """Die, with all that is planned; ``begin`` starts the next process."""
        if self.is_up:
            self.is_up = False
            self._life += 1
            self._on_stop()

    def begin(self) -> None:
        """A new process, which has planned nothing."""
        self.is_up = True


def forget_memory(worker: PodWorker) -> None:
    """Leave of a pod what outlives the kubelet's process: its containers and what is checkpointed."""
    worker.pending = worker.in_progress = None
    worker.retry = worker.finishing = None
    worker.samples = {}
    worker.deleting = False
    for container in worker.containers:
        container.restart = None
        container.backoff_seconds = 0.0


def recall_conditions(worker: PodWorker, now: float) -> None:
    """Take the resize conditions back from the API: reason, message and generation as they were, the transition time anew.

    1.36 does it so (``updatedPodResizeCondition`` with no old condition), although the KEP keeps the time. ``status.resize`` of 1.32 is not
    taken back: the next sync works it out from the checkpoints.
    """
    found = {c["type"]: c for c in (worker.pod.get("status") or {}).get("conditions") or []}
    worker.pending = _recalled(found.get(POD_RESIZE_PENDING), now)
    worker.in_progress = _recalled(found.get(POD_RESIZE_IN_PROGRESS), now)


def _recalled(stored: Json | None, now: float) -> ResizeCondition | None:
    if stored is None:
        return None
    return ResizeCondition(stored.get("reason", ""), stored.get("message", ""), stored.get("observedGeneration", 0), now, now)
