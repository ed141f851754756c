"""The jobs of a service: when they run, that they never overlap, that a failure stops nothing, and how they are stopped."""

import logging
import os
import signal
import threading

import pytest

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.cli.schedule import Bell, Job, run_jobs

START = 1_800_000_000.0


class SteppedClock:
    """Time that moves when somebody waits, until ``end``."""

    def __init__(self, seconds):
        self.moment, self.end = START, START + seconds
        self.stopped = False

    def now(self):
        return self.moment

    def wait_until(self, moment):
        if self.stopped or moment > self.end:
            return False
        self.moment = max(self.moment, moment)
        return True

    def stop(self):
        self.stopped = True


class Diary:
    """Who ran when, in seconds from the start."""

    def __init__(self, clock):
        self.clock = clock
        self.entries = []

    def job(self, name, interval, act=lambda: None, **more):
        def run():
            self.entries.append((name, round(self.clock.now() - START, 6)))
            act()

        return Job(name, run, interval, **more)

    def of(self, name):
        return [at for who, at in self.entries if who == name]


def diary(seconds):
    return Diary(SteppedClock(seconds))


@pytest.fixture(autouse=True)
def _handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_in_step_all_jobs_run_at_the_start_in_order_and_then_each_at_its_interval():
    told = diary(300)
    run_jobs([told.job("cycle", 60.0), told.job("checkpoint", 150.0), told.job("report", 1000.0)], told.clock)
    assert told.entries == [
        ("cycle", 0), ("checkpoint", 0), ("report", 0), ("cycle", 60), ("cycle", 120), ("checkpoint", 150),
        ("cycle", 180), ("cycle", 240), ("cycle", 300), ("checkpoint", 300),
    ]  # fmt: skip


def test_in_step_moments_that_were_missed_become_one():
    told = diary(400)

    def take_long():
        if told.clock.now() == START:
            told.clock.moment += 130.0

    run_jobs([told.job("cycle", 60.0, take_long)], told.clock)
    assert told.of("cycle") == [0, 180, 240, 300, 360]


def test_in_step_jitter_puts_runs_off_by_no_more_than_asked_for():
    told = diary(600)
    run_jobs([told.job("cycle", 60.0, jitter_seconds=5.0)], told.clock)
    late = [at % 60 for at in told.of("cycle")[1:]]
    assert len(late) >= 8
    assert all(0 <= seconds <= 5 for seconds in late)
    assert len(set(late)) > 1


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [(ClusterError("pods: 503", reason="Unavailable"), {"reason": "Unavailable", "error": "pods: 503"}), (KeyError("odd"), {})],
    ids=["ours", "unforeseen"],
)
def test_a_failure_is_told_and_stops_nothing(caplog, error, told):
    notes = diary(120)
    run_jobs([notes.job("cycle", 60.0, lambda: fail(error)), notes.job("report", 60.0)], notes.clock)
    assert notes.of("cycle") == notes.of("report") == [0, 60, 120]
    records = [record for record in caplog.records if record.name == "vpa_ippr.cli.schedule"]
    assert [record.job for record in records] == ["cycle"] * 3
    assert {name: getattr(records[0], name) for name in told} == told
    assert bool(records[0].exc_info) is (not told)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_step_a_signal_lets_the_running_job_finish_and_no_other_begin(number):
    told, finished = diary(300), []

    def stop_now():
        signal.raise_signal(number)
        finished.append("cycle")

    run_jobs([told.job("cycle", 60.0, stop_now), told.job("report", 60.0)], told.clock, at_end=lambda: finished.append("end"))
    assert told.entries == [("cycle", 0)]
    assert finished == ["cycle", "end"]


def test_in_step_a_signal_ends_a_wait_that_would_never_return():
    told, finished = diary(300), []

    def wait_for_ever(_moment):
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("still waiting")

    told.clock.wait_until = wait_for_ever
    run_jobs([told.job("cycle", 60.0)], told.clock, at_end=lambda: finished.append("end"))
    assert (told.of("cycle"), finished, told.clock.stopped) == ([0], ["end"], True)


def test_a_failure_at_the_end_is_told(caplog):
    told = diary(0)
    run_jobs([told.job("cycle", 60.0)], told.clock, at_end=lambda: fail(ClusterError("gone")))
    assert [record.job for record in caplog.records if record.name == "vpa_ippr.cli.schedule"] == ["end"]


def test_a_clock_that_is_lost_is_an_error():
    told = diary(0)
    told.clock.wait_until = lambda _: fail(ClusterError("clock gone", reason="ClockLost"))
    with pytest.raises(ClusterError, match="clock gone"):
        run_jobs([told.job("cycle", 60.0)], told.clock)


# On the machine's clock: real threads and real signals, and no wait but for what must happen.


def stop_process():
    os.kill(os.getpid(), signal.SIGTERM)


class Crowd:
    """Notes each run, and whether another one was under way; stops the process after so many runs of ``last``."""

    def __init__(self, last, runs):
        self.entries, self.overlaps, self.threads = [], 0, set()
        self._last, self._runs = last, runs
        self._busy = threading.Lock()

    def job(self, name, interval, **more):
        def run():
            if not self._busy.acquire(blocking=False):
                self.overlaps += 1
                return
            self.entries.append(name)
            self.threads.add(threading.get_ident())
            if name == self._last and self.entries.count(name) == self._runs:
                stop_process()
            self._busy.release()

        return Job(name, run, interval, **more)


def test_jobs_run_again_and_again_in_one_thread():
    crowd = Crowd("report", 3)
    jobs = [crowd.job("cycle", 0.01), crowd.job("checkpoint", 0.02), crowd.job("report", 0.02, jitter_seconds=0.01)]
    run_jobs(jobs, SystemClock(), at_end=lambda: crowd.entries.append("end"))
    assert crowd.entries[:3] == ["cycle", "checkpoint", "report"]
    assert crowd.entries.count("cycle") >= 3
    assert crowd.entries[-1] == "end"
    assert (crowd.overlaps, len(crowd.threads)) == (0, 1)
    assert threading.get_ident() not in crowd.threads


class Heard(logging.Handler):
    """Lets a thread wait for a line of the log."""

    def __init__(self, text):
        super().__init__()
        self._text = text
        self.event = threading.Event()
        self.jobs = set()

    def emit(self, record):
        if record.getMessage().startswith(self._text):
            self.jobs.add(record.job)
            self.event.set()


@pytest.fixture
def left_out(caplog):
    handler, logger = Heard("job left out once"), logging.getLogger("vpa_ippr.cli.schedule")
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_job_that_takes_longer_than_its_interval_is_left_out_and_told(left_out):
    runs = []

    def take_long():
        runs.append(left_out.event.wait(10.0))
        stop_process()

    run_jobs([Job("cycle", take_long, 0.01)], SystemClock())
    assert runs == [True]
    assert left_out.jobs == {"cycle"}


def test_a_signal_lets_the_running_job_finish_and_none_that_waits_for_it_begin(left_out):
    ran = []

    def take_long():
        left_out.event.wait(10.0)
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # here and now, not when the main thread gets to it
        ran.append("cycle")

    jobs = [Job("cycle", take_long, 0.01), Job("report", lambda: ran.append("report"), 0.01)]
    run_jobs(jobs, SystemClock(), at_end=lambda: ran.append("end"))
    assert ran == ["cycle", "end"]


def test_a_failure_on_the_machines_clock_is_told_and_the_job_runs_again(caplog):
    runs = []

    def fail_twice():
        runs.append(1)
        if len(runs) == 3:
            stop_process()
        fail(ClusterError("pods: 503", reason="Unavailable"))

    run_jobs([Job("cycle", fail_twice, 0.01)], SystemClock())
    # On a busy machine it also tells of runs that were left out.
    told = [record.reason for record in caplog.records if (record.name, record.msg) == ("vpa_ippr.cli.schedule", "job failed")]
    assert told[:3] == ["Unavailable"] * 3


def test_a_bell_goes_off_once_however_often_it_is_rung():
    bell, woken = Bell(), []
    bell.ring()  # before anybody listens
    bell.listen(lambda: woken.append(1))
    bell.ring()
    assert (bell.went_off(), bell.went_off(), woken) == (True, False, [])
    bell.ring()
    bell.ring()
    assert (bell.went_off(), bell.went_off(), woken) == (True, False, [1])


def test_a_job_begins_before_its_time_when_its_bell_is_rung_and_never_beside_another():
    bell, ran = Bell(), []
    busy = threading.Lock()

    def cycle():
        with busy:
            threading.Thread(target=bell.ring).start()  # as a watch does
            ran.append("cycle")

    def relief():
        assert busy.acquire(blocking=False)
        ran.append("relief")
        if not bell.went_off():
            busy.release()
            return  # at the start
        if ran.count("relief") == 3:
            stop_process()
        bell.ring()  # news while it runs: it runs once more
        busy.release()

    run_jobs([Job("relief", relief, 3600.0, bell=bell), Job("cycle", cycle, 3600.0)], SystemClock())
    assert ran == ["relief", "cycle", "relief", "relief"]


def test_in_step_a_bell_is_not_listened_to():
    told, bell = diary(100), Bell()
    run_jobs([told.job("cycle", 60.0, bell.ring, bell=bell)], told.clock)
    assert told.of("cycle") == [0, 60]
