"""A shrink's state as the API shows it, rounded so that noise writes nothing."""

from __future__ import annotations

from vpa_ippr.actuator import signals
from vpa_ippr.actuator.assess import Rates, rates
from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.actuator.state import ShrinkState
from vpa_ippr.api.shrink import Phase, ShrinkStatus
from vpa_ippr.api.timestamps import format_time


def status_of(state: ShrinkState, policy: Policy, generation: int) -> ShrinkStatus:
    """The status to write. While memory.high is still being put back, the phase stays what it was."""
    last = state.last
    seen = _recent_rates(state, policy)
    return ShrinkStatus(
        phase=state.phase,
        reason=str(state.reason),
        message=state.message,
        current_high_bytes=last.high_bytes if last is not None and not state.phase.is_terminal else None,
        usage_bytes=last.usage_bytes // MIB * MIB if last is not None else None,
        floor_bytes=state.floor_bytes,
        memory_pressure_percent=round(seen.memory_some_percent, 1),
        io_pressure_percent=round(seen.io_some_percent, 1),
        steps=state.pace.steps if state.pace is not None else 0,
        backoffs=state.pace.backoffs if state.pace is not None else 0,
        start_time=format_time(state.started_at),
        transition_time=format_time(state.phase_since),
        held_time=format_time(state.updated_at) if state.phase is Phase.HOLDING and state.ending is None else None,
        completion_time=format_time(state.phase_since) if state.phase.is_terminal else None,
        observed_generation=generation,
    )


def _recent_rates(state: ShrinkState, policy: Policy) -> Rates:
    if state.last is None or state.phase is Phase.PENDING:
        return Rates()
    before = signals.since(state.samples, policy.settle_seconds) or state.samples[0]
    return rates(before, state.last)
