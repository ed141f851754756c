"""Lock-step time and the agenda: nothing here sleeps, threads are joined with a limit that only a hang would reach."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import UsageError
from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.timekeeper import TimeKeeper

START = 1_000.0
HANG_SECONDS = 10.0


def run_all(keeper: TimeKeeper, *jobs: tuple[str, Callable[[Clock], None]]) -> None:
    """Run each job in a thread of its own as a participant of that name, and wait for all."""
    for name, _ in jobs:
        keeper.register(name)
    threads = [threading.Thread(target=_work, args=(keeper, name, job), daemon=True) for name, job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert not [thread for thread in threads if thread.is_alive()], "a participant hangs"


def _work(keeper: TimeKeeper, name: str, job: Callable[[Clock], None]) -> None:
    clock = keeper.local_clock(name)
    job(clock)
    clock.stop()


def waiter(log: list[tuple[float, str]], name: str, *moments: float) -> tuple[str, Callable[[Clock], None]]:
    def job(clock: Clock) -> None:
        for moment in moments:
            assert clock.wait_until(moment)
            log.append((clock.now(), name))

    return name, job


def test_time_jumps_to_the_earliest_moment_and_equal_moments_go_by_name() -> None:
    log: list[tuple[float, str]] = []
    keeper = TimeKeeper(START)
    run_all(keeper, waiter(log, "b", 1010, 1030), waiter(log, "a", 1020, 1030), waiter(log, "c", 1010, 1030))
    assert log == [(1010, "b"), (1010, "c"), (1020, "a"), (1030, "a"), (1030, "b"), (1030, "c")]


def test_only_one_participant_works_at_a_time() -> None:
    working: list[str] = []
    keeper = TimeKeeper(START)

    def job(name: str) -> Callable[[Clock], None]:
        def work(clock: Clock) -> None:
            for moment in range(1001, 1050):
                clock.wait_until(moment)
                working.append(name)
                assert working == [name]
                working.clear()

        return work

    run_all(keeper, ("a", job("a")), ("b", job("b")))
    assert keeper.now() == 1049


def test_a_moment_that_has_passed_returns_at_once_and_time_never_goes_back() -> None:
    log: list[tuple[float, str]] = []
    keeper = TimeKeeper(START)
    run_all(keeper, waiter(log, "a", 1010, 1005))
    assert log == [(1010, "a"), (1010, "a")]


def test_time_stands_still_while_somebody_works() -> None:
    keeper = TimeKeeper(START)
    keeper.register("busy")
    keeper.register("waiting")
    released = threading.Event()

    def wait() -> None:
        keeper.wait_until("waiting", 2000.0)
        released.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert keeper.now() == START
    assert not released.is_set()
    keeper.drop("busy")
    assert released.wait(HANG_SECONDS)
    assert keeper.now() == 2000.0


def test_dropping_a_waiting_participant_ends_its_wait_with_false() -> None:
    keeper = TimeKeeper(START)
    keeper.register("dead")
    keeper.register("other")
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(keeper.wait_until("dead", 2000.0)), daemon=True)
    thread.start()
    keeper.drop("dead")
    thread.join(HANG_SECONDS)
    if results:
        assert results == [False]
    else:
        pytest.fail("the wait did not end")


def test_wake_shortens_the_present_wait_and_the_next_one() -> None:
    keeper = TimeKeeper(START)
    keeper.register("kubelet")
    keeper.wake("kubelet", 1003.0)
    assert keeper.wait_until("kubelet", 1100.0)
    assert keeper.now() == 1003.0

    seen: list[float] = []
    keeper = TimeKeeper(START)

    def updater(clock: Clock) -> None:
        clock.wait_until(1050.0)
        keeper.wake("kubelet", clock.now())
        clock.wait_until(1060.0)

    def kubelet(clock: Clock) -> None:
        clock.wait_until(1100.0)
        seen.append(keeper.now())

    run_all(keeper, ("kubelet", kubelet), ("updater", updater))
    assert seen == [1050.0]


def test_stop_ends_every_wait_with_false() -> None:
    keeper = TimeKeeper(START)
    keeper.register("busy")
    clock = keeper.local_clock("a")
    keeper.register("a")
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(clock.wait_until(2000.0)), daemon=True)
    thread.start()
    keeper.stop()
    thread.join(HANG_SECONDS)
    assert results == [False]
    assert not clock.wait_until(3000.0)
    assert keeper.now() == START


def test_handle_wait_answers_the_time_and_before_the_moment_when_stopped() -> None:
    keeper = TimeKeeper(START)
    keeper.register("remote")
    assert keeper.handle_wait("remote", 1200.0) == 1200.0
    keeper.stop()
    assert keeper.handle_wait("remote", 1300.0) == 1200.0


def test_misuse_is_a_clear_error() -> None:
    keeper = TimeKeeper(START)
    keeper.register("a")
    with pytest.raises(UsageError, match="'a' is registered already"):
        keeper.register("a")
    with pytest.raises(UsageError, match="nobody named 'b'"):
        keeper.wait_until("b", 2000.0)
    with pytest.raises(UsageError, match="rate 0 is not above 0"):
        TimeKeeper(START, rate=0)


def test_with_a_rate_time_keeps_to_the_wall_clock() -> None:
    wall = [0.0]
    keeper = TimeKeeper(START, rate=10.0, wall=lambda: wall[0])
    keeper.register("a")
    keeper.register("working")
    assert keeper.now() == START
    wall[0] = 3.0
    # 30 simulated seconds have passed on the wall, so a wait for 20 of them is due at once.
    keeper.drop("working")
    assert keeper.wait_until("a", START + 20)
    assert keeper.now() == START + 20


def test_with_a_rate_now_flows_while_all_wait() -> None:
    wall = [0.0]
    keeper = TimeKeeper(START, rate=2.0, wall=lambda: wall[0])
    keeper.register("a")
    thread = threading.Thread(target=lambda: keeper.wait_until("a", START + 1e6), daemon=True)
    thread.start()
    wall[0] = 5.0
    moment = keeper.now()
    while moment == START and thread.is_alive():
        moment = keeper.now()
    assert moment == START + 10
    keeper.stop()
    thread.join(HANG_SECONDS)


def test_agenda_runs_by_time_then_by_order_and_soon_comes_first() -> None:
    now = [0.0]
    done: list[str] = []
    agenda = Agenda(lambda: now[0])
    agenda.at(2.0, lambda: done.append("later"))
    agenda.at(1.0, lambda: done.append("first"))
    agenda.at(1.0, lambda: done.append("second"))
    agenda.at(1.0, lambda: done.append("cancelled")).cancel()
    agenda.soon(lambda: done.append("soon"))
    assert agenda.run_until(1.0) == 2.0
    assert done == ["soon", "first", "second"]
    assert agenda.run_until(5.0) == float("inf")
    assert done[-1] == "later"


def test_agenda_goes_on_after_a_failing_action(caplog: pytest.LogCaptureFixture) -> None:
    agenda = Agenda(lambda: 0.0)
    done: list[int] = []
    agenda.at(1.0, lambda: done.append(1 // 0))
    agenda.at(1.0, lambda: done.append(1))
    agenda.run_until(1.0)
    assert done == [1]
    assert "sandbox action failed" in caplog.text


def test_agenda_wakes_its_loop_when_something_comes_from_outside() -> None:
    woken: list[float] = []
    agenda = Agenda(lambda: 7.0, woken.append)
    agenda.at(9.0, lambda: None)
    assert woken == []
    agenda.soon(lambda: None)
    assert woken == [7.0]
