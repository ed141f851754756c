"""The jobs of a service, again and again: by apscheduler on the machine's clock, or in step with a remote clock.

Both take their moments from apscheduler's interval trigger. No two jobs of a service ever overlap, not even two different ones: a service
keeps what it knows in memory and is used by one thread at a time. A job that is due while another one runs waits for its turn, and moments
that it missed meanwhile become one. On the machine's clock a job may have a ``Bell`` besides, which lets it begin before its time.

With a ``Leading`` jobs run only while this process leads, and what is due begins when leading does.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from vpa_ippr.api.clock import Clock, SystemClock
from vpa_ippr.api.errors import VpaIpprError

if TYPE_CHECKING:
    from apscheduler.events import JobSubmissionEvent
    from apscheduler.schedulers.background import BackgroundScheduler
    from apscheduler.triggers.interval import IntervalTrigger

    from vpa_ippr.cluster.lease import Leading

logger = logging.getLogger(__name__)

_SIGNAL_SECONDS = 1.0

_SOONEST_SECONDS = 0.001


class Bell:
    """Rung from any thread when there is something to do at once; whoever does it asks ``went_off`` first."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def ring(self) -> None:
        """Wake who listens, unless that is done already."""
        if not self._rung.is_set():
            self._rung.set()
            self._wake()

    def went_off(self) -> bool:
        """True once after it was rung."""
        rung = self._rung.is_set()
        self._rung.clear()
        return rung

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` from now on, in the thread that rings."""
        self._wake = wake


@dataclass(frozen=True, slots=True)
class Job:
    """Something that a service does every so often, and once at the start.

    ``jitter_seconds``: each run after the first is put off by a random time of up to this, so that many services do not ask the same
    server at once. ``bell``: it also runs when that is rung, as soon as no other job does.
    """

    name: str
    run: Callable[[], object]
    interval_seconds: float
    jitter_seconds: float = 0.0
    bell: Bell | None = None


def run_jobs(
    jobs: Sequence[Job],
    clock: Clock,
    *,
    at_end: Callable[[], object] | None = None,
    leading: Leading | None = None,
    warm_up: Callable[[], object] | None = None,
) -> None:
    """Run the jobs, at first all of them in this order, until SIGTERM or SIGINT, or until a remote clock ends.

    A job that fails is logged with its reason and runs again when it is due. The running job is finished before this returns, and
    ``at_end`` is the last thing that runs.

    With ``leading``, jobs and ``at_end`` run only while it leads, and it is stopped at the end. ``warm_up`` runs once before that, so that
    a process that waits for its turn knows the cluster when it comes.

    Raises:
        ClusterError: a remote clock can no longer be followed.
    """
    if warm_up is not None:
        _guarded("warm-up", warm_up)
    try:
        if isinstance(clock, SystemClock):
            _run_scheduled(jobs, leading)
        else:
            _run_in_step(jobs, clock, leading)
        if at_end is not None and _may_run(leading):
            _guarded("end", at_end)
    finally:
        if leading is not None:
            leading.stop()


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within it SIGTERM and SIGINT call ``stop`` instead of ending the process; only the main thread may do this."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _guarded(name: str, run: Callable[[], object]) -> None:
    try:
        run()
    except VpaIpprError as error:
        logger.warning("job failed", extra={"job": name, "reason": error.reason, "error": str(error)})
    except Exception:
        logger.exception("job failed unexpectedly", extra={"job": name})


def _may_run(leading: Leading | None) -> bool:
    return leading is None or leading.is_leader()


def _trigger(job: Job, start: float) -> IntervalTrigger:
    from apscheduler.triggers.interval import IntervalTrigger

    return IntervalTrigger(
        seconds=job.interval_seconds,
        timezone=UTC,
        start_date=datetime.fromtimestamp(start, UTC),
        jitter=job.jitter_seconds or None,
    )


class _Stopped(BaseException):
    """Ends a wait; no handler of ordinary errors on the way may hold it up."""


def _run_in_step(jobs: Sequence[Job], clock: Clock, leading: Leading | None) -> None:
    triggers = [_trigger(job, clock.now()) for job in jobs]
    due = [clock.now() for _ in jobs]
    stopped, waiting = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        clock.stop()
        if waiting.is_set():
            # A remote clock is waited for inside a request that may never be answered.
            raise _Stopped

    with stop_signals(stop), contextlib.suppress(_Stopped):
        while not stopped.is_set():
            election = [] if leading is None else [leading.advance()]
            for index, job in enumerate(jobs):
                if due[index] <= clock.now() and not stopped.is_set() and _may_run(leading):
                    _guarded(job.name, job.run)
                    now = datetime.fromtimestamp(clock.now() + _SOONEST_SECONDS, UTC)
                    due[index] = triggers[index].get_next_fire_time(None, now).timestamp()
            waiting.set()
            if not clock.wait_until(min([*due, *election] if _may_run(leading) else election)):
                return
            waiting.clear()


def _run_scheduled(jobs: Sequence[Job], leading: Leading | None) -> None:
    from apscheduler.events import EVENT_JOB_MAX_INSTANCES
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    stopped = threading.Event()
    # Written by a signal's handler, too, which may interrupt a reader: of all queues only this kind allows that.
    news: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def stop() -> None:
        stopped.set()
        news.put(None)

    def take_turn(job: Job) -> None:
        # What still waits for its turn when the service is stopped, or no longer leads, does not begin.
        if not stopped.is_set() and _may_run(leading):
            _guarded(job.name, job.run)

    scheduler = BackgroundScheduler(
        timezone=UTC,
        executors={"default": ThreadPoolExecutor(max_workers=1)},
        # However late: an old recommendation is mended by a late cycle, and by none at all when that is left out.
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
    )
    scheduler.add_listener(_tell_missed, EVENT_JOB_MAX_INSTANCES)
    start = datetime.now(UTC).timestamp()
    for job in jobs:
        # One that was rung for while it runs is to run once more: what it has read may be older than the news.
        instances = 1 if job.bell is None else 2
        scheduler.add_job(take_turn, _trigger(job, start), args=(job,), id=job.name, next_run_time=None, max_instances=instances)
        if job.bell is not None:
            job.bell.listen(partial(news.put, job.name))
    with stop_signals(stop):
        scheduler.start()
        if leading is not None:
            leading.start(lambda: news.put(None))
        under_way = False
        while not stopped.is_set():
            if under_way != _may_run(leading):
                under_way = not under_way
                (_begin if under_way else _pause)(scheduler, jobs)
            # A signal that another thread has taken is seen only when this one wakes up.
            with contextlib.suppress(queue.Empty):
                rung_for = news.get(timeout=_SIGNAL_SECONDS)
                if rung_for is not None and under_way:
                    scheduler.modify_job(rung_for, next_run_time=datetime.now(UTC))
        scheduler.shutdown(wait=True)


def _begin(scheduler: BackgroundScheduler, jobs: Sequence[Job]) -> None:
    now = datetime.now(UTC)
    for order, job in enumerate(jobs):
        # Jobs that are due at the same moment are not in the order in which they were added.
        scheduler.modify_job(job.name, next_run_time=now + timedelta(microseconds=order))


def _pause(scheduler: BackgroundScheduler, jobs: Sequence[Job]) -> None:
    for job in jobs:
        scheduler.pause_job(job.name)


def _tell_missed(event: JobSubmissionEvent) -> None:
    logger.info("job left out once: its last run has not ended yet", extra={"job": event.job_id})
