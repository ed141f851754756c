"""When requests are sent again, how long after, and how often at most."""

import contextlib
import json
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli import dead_address
from support.http import Answer, scripted_server
from vpa_ippr.api.pod import Pod
from vpa_ippr.cluster.rest import ApiError, ApiUnreachableError, Connection, Rest
from vpa_ippr.cluster.retry import RetryBudget, may_send_again, seconds_before

POD = Answer(body=b'{"metadata": {"name": "a"}}')


class Time:
    """Sleeping is what moves it."""

    def __init__(self):
        self.moment, self.sleeps = 0.0, []

    def monotonic(self):
        return self.moment

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.moment += seconds


@pytest.fixture
def time():
    return Time()


def rest_at(url, time, **more):
    return Rest(Connection(url), monotonic=time.monotonic, sleep=time.sleep, **more)


@pytest.mark.parametrize(
    ("method", "status", "causes", "was_sent", "again"),
    [
        ("GET", None, (), True, True),
        ("PATCH", None, (), True, False),
        ("PATCH", None, (), False, True),
        ("POST", 429, (), True, True),
        ("POST", 429, ("DisruptionBudget",), True, False),
        ("GET", 429, (), True, True),
        ("GET", 500, (), True, True),
        ("GET", 503, (), True, True),
        ("GET", 504, (), True, True),
        ("PATCH", 500, (), True, False),
        ("PATCH", 503, (), True, False),
        ("GET", 404, (), True, False),
        ("GET", 403, (), True, False),
        ("PATCH", 409, (), True, False),
    ],
)
def test_what_is_sent_again(method, status, causes, was_sent, again):
    assert may_send_again(method, status, causes, was_sent=was_sent) is again


@given(attempt=st.integers(0, 30), draw=st.floats(0, 1), wanted=st.none() | st.floats(0, 60))
def test_waits_are_bounded_and_never_shorter_than_the_server_asked_for(attempt, draw, wanted):
    seconds = seconds_before(attempt, wanted, draw)
    if wanted is None:
        assert min(10.0, 0.3 * 2**attempt) / 2 <= seconds <= min(10.0, 0.3 * 2**attempt)
    else:
        assert wanted <= seconds <= wanted * 1.2 + 1e-9


def test_waits_differ():
    assert seconds_before(3, None, 0.1) != seconds_before(3, None, 0.9)
    assert seconds_before(3, 5.0, 0.1) != seconds_before(3, 5.0, 0.9)


@pytest.mark.parametrize("header", [True, False], ids=["header", "status"])
def test_the_time_that_the_server_asked_for_is_kept(time, header):
    details = {} if header else {"retryAfterSeconds": 7}
    body = json.dumps({"code": 429, "message": "busy", "details": details}).encode()
    answers = [Answer(429, body, {"Retry-After": "7"} if header else {}), POD]
    with scripted_server(lambda _: answers.pop(0)) as server:
        rest_at(server.url, time).patch("/p", {}, Pod)
    assert len(time.sleeps) == 1
    assert 7.0 <= time.sleeps[0] <= 8.4


def test_a_server_that_asks_for_more_time_than_a_call_has_is_left_alone(time):
    with scripted_server(lambda _: Answer(503, headers={"Retry-After": "30"})) as server:
        with pytest.raises(ApiError) as caught:
            rest_at(server.url, time).get("/p", Pod)
        assert len(server.requests) == 1
    assert (caught.value.retry_after_seconds, time.sleeps) == (30.0, [])


@pytest.mark.parametrize("retry_after", [None, "3", "9"])
def test_a_call_ends_in_its_time_whatever_the_server_says(time, retry_after):
    headers = {"Retry-After": retry_after} if retry_after else {}
    with scripted_server(lambda _: Answer(503, headers=headers)) as server:
        with pytest.raises(ApiError):
            rest_at(server.url, time, retries=1000).get("/p", Pod)
        assert len(server.requests) > 1
    assert time.moment <= 30.0


def test_an_address_where_nobody_listens_is_tried_again_for_writes_too(time):
    with pytest.raises(ApiUnreachableError):
        rest_at(f"http://{dead_address()}", time).patch("/p", {}, Pod)
    assert len(time.sleeps) == 4


def test_a_write_whose_answer_is_lost_is_not_sent_again(time):
    with scripted_server(lambda _: Answer(body=b'{"metadata": {}}', cut_after=3)) as server:
        with pytest.raises(ApiUnreachableError):
            rest_at(server.url, time).patch("/p", {}, Pod)
        assert len(server.requests) == 1


def test_an_eviction_that_a_budget_forbids_is_not_asked_for_again(time):
    body = json.dumps({"code": 429, "message": "no", "details": {"causes": [{"reason": "DisruptionBudget"}]}}).encode()
    with scripted_server(lambda _: Answer(429, body)) as server:
        with pytest.raises(ApiError, match="no"):
            rest_at(server.url, time).create("/p/eviction", {}, Pod)
        assert len(server.requests) == 1


def test_a_redirect_is_not_followed(time):
    with scripted_server(lambda _: Answer(302, b"elsewhere", {"Location": "/login"})) as server:
        with pytest.raises(ApiError, match="elsewhere"):
            rest_at(server.url, time).get("/p", Pod)
        assert len(server.requests) == 1


def test_an_answer_that_trickles_is_given_up_in_time():
    """Each byte comes well within the socket's time-out, so only the whole call's can end it."""
    time, stopped = Time(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not stopped.is_set():
                    connection.sendall(b" ")
                    time.moment += 1.0

        def run():
            with contextlib.suppress(OSError):
                trickle()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        with pytest.raises(ApiUnreachableError, match="longer than 30 s"):
            rest_at(f"http://127.0.0.1:{listener.getsockname()[1]}", time, retries=0).get("/p", Pod)
        stopped.set()
        thread.join()


# The budget.


def test_a_server_in_trouble_gets_hardly_more_requests_than_one_that_is_well(time):
    calls = 200
    with scripted_server(lambda _: Answer(503)) as server:
        rest = rest_at(server.url, time)
        for _ in range(calls):
            time_before = time.moment
            with pytest.raises(ApiError):
                rest.get("/p", Pod)
            time.moment = time_before  # as if many asked at once
        sent = len(server.requests)
    assert calls + 10 <= sent <= calls * 1.1 + 21


@given(steps=st.lists(st.sampled_from(["request", "retry", "second"]), max_size=300))
def test_retries_are_a_tenth_of_the_requests_and_a_small_floor(steps):
    time = Time()
    budget = RetryBudget(time.monotonic)
    requests = retries = 0
    for step in steps:
        if step == "request":
            budget.note_request()
            requests += 1
        elif step == "second":
            time.moment += 1.0
        elif budget.take():
            retries += 1
        assert retries <= 10 + requests * 0.1 + time.moment * 0.1 + 1e-6


def test_a_budget_recovers_but_is_not_saved_up():
    time = Time()
    budget = RetryBudget(time.monotonic)
    assert sum(budget.take() for _ in range(100)) == 10
    for _ in range(51):
        budget.note_request()
    assert sum(budget.take() for _ in range(100)) == 5
    time.moment += 1e6
    assert sum(budget.take() for _ in range(100)) == 20


# What is told of each attempt, and connections.


def test_each_attempt_is_told(time):
    told = []
    answers = [Answer(503), POD]
    with scripted_server(lambda _: answers.pop(0)) as server:
        rest_at(server.url, time, observe=lambda *attempt: told.append(attempt)).get("/p", Pod)
    with pytest.raises(ApiUnreachableError):
        rest_at(f"http://{dead_address()}", time, retries=0, observe=lambda *attempt: told.append(attempt)).delete("/p")
    assert [(method, status) for method, status, _ in told] == [("GET", 503), ("GET", 200), ("DELETE", 0)]


def test_one_connection_serves_many_calls():
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            accepted.append(connection)
            with connection:
                while connection.recv(65536):
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(POD.body)
                    connection.sendall(head + POD.body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        rest = Rest(Connection(f"http://127.0.0.1:{listener.getsockname()[1]}"), timeout_seconds=5.0, retries=0)
        assert [rest.get("/p", Pod).metadata.name for _ in range(3)] == ["a"] * 3
        rest._pool.clear()
        thread.join()
    assert len(accepted) == 1
