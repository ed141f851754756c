"""A clock that another process keeps: the real keeper's routes, over HTTP."""

import threading

import pytest

from support.cli import dead_address
from support.http import Answer, scripted_server
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.cluster.remote_clock import RemoteClock
from vpa_ippr.sandbox.background import BackgroundServer
from vpa_ippr.sandbox.clockapp import ClockApp
from vpa_ippr.sandbox.timekeeper import TimeKeeper

START = 1_767_225_600.0


@pytest.fixture
def keeper():
    return TimeKeeper(START)


@pytest.fixture
def server(keeper):
    server = BackgroundServer(ClockApp(keeper).app(), "127.0.0.1", 0)
    server.start()
    yield server
    keeper.stop()
    server.stop()


def test_joining_tells_the_time_and_waiting_moves_it(server):
    clock = RemoteClock(server.url, "recommender")
    assert clock.now() == START
    assert clock.wait_until(START + 60)
    assert clock.now() == START + 60
    assert clock.wait_until(START + 30)
    assert clock.now() == START + 60


def test_time_waits_for_everyone_who_has_joined(server, keeper):
    first, second = RemoteClock(server.url + "/", "first one"), RemoteClock(server.url, "second & last")
    seen = []

    def wait(clock, moment):
        clock.wait_until(moment)
        seen.append((moment, clock.now()))

    waiter = threading.Thread(target=wait, args=(second, START + 10))
    waiter.start()
    wait(first, START + 5)
    assert seen == [(START + 5, START + 5)]
    late = threading.Thread(target=wait, args=(first, START + 20))
    late.start()
    waiter.join()
    assert second.wait_until(START + 15)
    assert (seen[1], second.now()) == ((START + 10, START + 10), START + 15)
    assert late.is_alive()
    keeper.drop("second & last")
    late.join()
    assert seen[2] == (START + 20, START + 20)


def test_a_stopped_clock_waits_for_nothing(server, keeper):
    clock = RemoteClock(server.url, "recommender")
    clock.stop()
    assert not clock.wait_until(START + 60)
    assert keeper.now() == START


def test_the_end_of_time_ends_a_wait(server, keeper):
    clock, _other = RemoteClock(server.url, "recommender"), RemoteClock(server.url, "updater")
    results = []
    waiter = threading.Thread(target=lambda: results.append(clock.wait_until(START + 60)))
    waiter.start()
    keeper.stop()
    waiter.join()
    assert results == [False]
    assert not clock.wait_until(START + 120)


def test_joining_again_under_the_same_name_goes_on(server):
    RemoteClock(server.url, "recommender").wait_until(START + 60)
    assert RemoteClock(server.url, "recommender").now() == START + 60


def test_nobody_keeps_the_clock():
    url = f"http://{dead_address()}"
    with pytest.raises(ClusterError, match=url) as caught:
        RemoteClock(url, "recommender")
    assert caught.value.reason == "ClockLost"
    assert "\n" not in str(caught.value)


NOW = Answer(body=b'{"now": 5.0}')


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Answer(409, b"register first"), "answered HTTP 409"),
        (Answer(200, b"<html>"), "cannot be followed"),
        (Answer(200, b'{"then": 5}'), "cannot be followed"),
        (Answer(200, b'{"now": 5.0}', cut_after=3), "cannot be followed"),
    ],
    ids=["refused", "html", "other-json", "cut"],
)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_keeper_that_is_lost_during_a_wait(answer, line, stopped):
    clocks = []

    def respond(request):
        if not request.path.endswith("/wait"):
            return NOW
        if stopped:
            clocks[0].stop()
        return answer

    with scripted_server(respond) as server:
        clocks.append(RemoteClock(server.url, "recommender"))
        if stopped:
            assert not clocks[0].wait_until(60.0)
            return
        with pytest.raises(ClusterError, match=line) as caught:
            clocks[0].wait_until(60.0)
    assert caught.value.reason == "ClockLost"
