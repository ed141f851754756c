"""Run a component's cycle again and again: by apscheduler on the machine's clock, or in step with a remote clock.

Both take their moments from apscheduler's interval trigger, and neither lets two cycles overlap: a cycle that takes longer than the
interval makes the missed ones coalesce into one.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType

from vpa_ippr.api.clock import Clock, SystemClock
from vpa_ippr.api.errors import VpaIpprError

logger = logging.getLogger(__name__)

Cycle = Callable[[], object]


def run_periodically(cycle: Cycle, clock: Clock, interval_seconds: float, *, name: str) -> None:
    """Run ``cycle`` every ``interval_seconds`` until SIGTERM or SIGINT, or until a remote clock ends.

    A cycle that fails with one of our errors is logged and tried again at the next interval.
    """
    if isinstance(clock, SystemClock):
        _run_scheduled(cycle, interval_seconds, name)
    else:
        _run_in_step(cycle, clock, interval_seconds, name)


def _guarded(cycle: Cycle, name: str) -> None:
    try:
        cycle()
    except VpaIpprError as error:
        logger.warning(
            "cycle failed, trying again at the next interval", extra={"component": name, "reason": error.reason, "error": str(error)}
        )


def _run_in_step(cycle: Cycle, clock: Clock, interval_seconds: float, name: str) -> None:
    from apscheduler.triggers.interval import IntervalTrigger

    trigger = IntervalTrigger(seconds=interval_seconds, timezone=UTC, start_date=datetime.fromtimestamp(clock.now(), UTC))
    while True:
        _guarded(cycle, name)
        following = trigger.get_next_fire_time(None, datetime.fromtimestamp(clock.now() + 0.001, UTC)).timestamp()
        if not clock.wait_until(following):
            return


def _run_scheduled(cycle: Cycle, interval_seconds: float, name: str) -> None:
    from apscheduler.schedulers.background import BackgroundScheduler
    from apscheduler.triggers.interval import IntervalTrigger

    scheduler = BackgroundScheduler(timezone=UTC)
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    scheduler.add_job(
        _guarded,
        IntervalTrigger(seconds=interval_seconds, timezone=UTC),
        args=(cycle, name),
        id=name,
        max_instances=1,
        coalesce=True,
        misfire_grace_time=None,
        next_run_time=datetime.now(UTC),
    )
    scheduler.start()
    stopped.wait()
    # The running cycle ends in order: what it began to write is written.
    scheduler.shutdown(wait=True)
