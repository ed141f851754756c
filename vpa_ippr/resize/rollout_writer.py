"""Writing down how a rollout stands, before anything of it is done."""

from __future__ import annotations

import logging

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.ports import UpdaterPort
from vpa_ippr.resize.rollout import RolloutStep
from vpa_ippr.resize.rollout_state import read_rollout, to_annotations
from vpa_ippr.resize.writer import Writer

logger = logging.getLogger(__name__)


class RolloutWriter:
    """Writes the state, the condition and the events of rollouts onto their VPAs."""

    def __init__(self, cluster: UpdaterPort, writer: Writer) -> None:
        self._cluster = cluster
        self._writer = writer

    def write(self, vpa: Vpa, step: RolloutStep) -> ClusterError | None:
        """None when the state stands in the cluster as the step has it, so that the rest of the step may be done."""
        # First: it is written on the condition that the VPA has not changed since it was read, which the state changes.
        self._write_condition(vpa, step)
        if step.state != read_rollout(vpa):
            try:
                self._cluster.annotate_vpa(vpa.key, to_annotations(step.state))
            except ClusterError as error:
                return error
        for event in step.events:
            self._writer.say_of_vpa(vpa, event.type, event.reason, event.message)
        return None

    def _write_condition(self, vpa: Vpa, step: RolloutStep) -> None:
        """A condition that could not be written is written in the next cycle."""
        if step.condition is None:
            return
        try:
            self._cluster.put_vpa_condition(vpa, step.condition)
        except ClusterError as error:
            logger.warning("condition not written", extra={"vpa": str(vpa.key), "error": str(error)})
