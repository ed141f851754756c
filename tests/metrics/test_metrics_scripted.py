"""The Prometheus source against a scripted server: what is sent, what is retried, what is given up and said."""

import socket
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from support.http import Answer, Request, scripted_server
from vpa_ippr.api.errors import SourceError, UsageError
from vpa_ippr.api.series import ContainerRef, OomKill, Resource, Window, WorkloadRef
from vpa_ippr.metrics.prometheus import PrometheusSource
from vpa_ippr.metrics.quality import Reason
from vpa_ippr.metrics.reader import NamespaceReader
from vpa_ippr.metrics.settings import PrometheusSettings

WINDOW = Window(0, 3600, 60)


class FakeClock:
    """Waiting takes no time, and is remembered."""

    def __init__(self) -> None:
        self.time = 10_000.0
        self.waits: list[float] = []
        self.stopped = False

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> bool:
        self.waits.append(round(moment - self.time, 3))
        self.time = max(self.time, moment)
        return not self.stopped

    def stop(self) -> None:
        self.stopped = True


def success(data: object, **more: object) -> Answer:
    return Answer(200, msgspec.json.encode({"status": "success", "data": data, **more}), {"Content-Type": "application/json"})


def rows(*series: tuple[dict, list]) -> Answer:
    return success({"resultType": "matrix", "result": [{"metric": labels, "values": values} for labels, values in series]})


def form_of(request: Request) -> dict[str, str]:
    text = request.body.decode() if request.method == "POST" else urlsplit(request.path).query
    return {name: values[0] for name, values in parse_qs(text).items()}


class FakePrometheus:
    """Answers each query by the metric in it, for a namespace with one container of steady use; a test overrides some answers."""

    def __init__(self, **overrides: Callable[[dict[str, str]], Answer]) -> None:
        self.overrides = overrides
        self.namespaces = ["shop"]

    def __call__(self, request: Request) -> Answer:
        path = urlsplit(request.path).path
        if path.endswith("/label/namespace/values"):
            return self.overrides.get("labels", lambda _: success(self.namespaces))(form_of(request))
        form = form_of(request)
        for part, answer in self.overrides.items():
            if part in form["query"]:
                return answer(form)
        return self.usual(form)

    @staticmethod
    def usual(form: dict[str, str]) -> Answer:
        query = form["query"]
        namespace = query.split('namespace="')[1].split('"')[0]
        container = {"namespace": namespace, "pod": "web-1", "container": "app"}
        if "rate(" in query:
            return rows((container, points(form, "0.5")))
        if "max_over_time(container_memory" in query:
            return rows((container, points(form, "1048576")))
        if "count_over_time" in query:
            return rows(({"namespace": namespace}, points(form, "61" if "[3600s]" in query else "6")))
        if "count by" in query:
            return rows((container, points(form, "1")))
        if "kube_pod_owner" in query:
            return rows(({"pod": "web-1", "owner_kind": "ReplicaSet", "owner_name": "web-abc"}, [[1, "1"]]))
        if "kube_replicaset_owner" in query:
            return rows(({"replicaset": "web-abc", "owner_kind": "Deployment", "owner_name": "web"}, [[1, "1"]]))
        return rows()


def points(form: dict[str, str], text: str) -> list:
    start, end, step = (round(float(form[name]) * 1000) for name in ("start", "end", "step"))
    return [[moment / 1000, text] for moment in range(start, end + 1, step)]


def read(server, clock=None, window=WINDOW, namespaces=None, **settings):
    with PrometheusSource(PrometheusSettings(url=server.url, **settings), clock or FakeClock(), jitter=lambda: 1.0) as source:
        return source.fetch(window, namespaces)


def test_a_namespace_becomes_series_owners_and_costs():
    with scripted_server(FakePrometheus()) as server:
        usage = read(server)

    container = ContainerRef("shop", "web-1", "app")
    assert [(one.container, one.resource, one.values[0], one.values.size) for one in usage.series] == [
        (container, Resource.CPU, 0.5, 60),
        (container, Resource.MEMORY, 1048576, 60),
    ]
    assert usage.series[0].timestamps.tolist() == [60.0 * n for n in range(1, 61)]
    assert usage.owners == {("shop", "web-1"): WorkloadRef("shop", "Deployment", "web")}
    assert (usage.findings, usage.failures, usage.ooms) == ((), (), ())
    assert usage.costs.queries == len(server.requests)
    assert usage.costs.samples > 120
    assert usage.costs.received_bytes > 1000


def test_queries_are_posted_forms_at_explicit_times_with_identity_encoding_and_a_time_limit():
    with scripted_server(FakePrometheus()) as server:
        read(server, timeout_seconds=42, headers={"X-Scope-OrgID": "team"}, cluster="east", extra_matchers=('replica="a"',))

    listing, *queries = server.requests
    assert (listing.method, form_of(listing)["start"], form_of(listing)["end"]) == ("GET", "0.000", "3600.000")
    for request in queries:
        form = form_of(request)
        assert request.method == "POST"
        assert "?" not in request.path
        assert request.headers["Accept-Encoding"] == "identity"
        assert form["timeout"] == "42s"
        assert form.get("time") == "3600.000" or float(form["end"]) <= 3600
    for request in server.requests:
        assert request.headers["X-Scope-OrgID"] == "team"
        assert all(part in str(form_of(request)) for part in ('cluster="east"', 'replica="a"'))


def test_the_same_window_asks_the_same_questions_whatever_the_time_is():
    with scripted_server(FakePrometheus()) as server:
        later = FakeClock()
        later.time = 5e8
        assert [one.values.tolist() for one in read(server).series] == [one.values.tolist() for one in read(server, later).series]

    half = len(server.requests) // 2
    assert [form_of(request) for request in server.requests[:half]] == [form_of(request) for request in server.requests[half:]]


@pytest.mark.parametrize(
    ("settings", "window", "most"),
    [
        ({}, Window(0, 30 * 86400, 60), 10_000),
        ({"max_points": 100}, WINDOW, 100),
        ({"max_samples": 7}, WINDOW, 7),
    ],
    ids=["servers-limit", "points", "samples"],
)
def test_long_windows_are_split_and_put_together_again(settings, window, most):
    with scripted_server(FakePrometheus()) as server:
        usage = read(server, window=window, **settings)

    assert usage.series[0].timestamps.tolist() == [60.0 * n for n in range(1, int(window.end // 60) + 1)]
    sent = [form_of(request) for request in server.requests if "rate" in request.body.decode()]
    assert all((float(form["end"]) - float(form["start"])) / 60 + 1 <= most for form in sent)
    assert usage.findings == ()


def test_the_rate_window_follows_the_scrape_interval_found():
    with scripted_server(FakePrometheus()) as server:
        read(server)
        read(server, scrape_interval_seconds=5)

    rates = [form_of(request)["query"] for request in server.requests if "rate" in request.body.decode()]
    assert ["[240s]" in rates[0], "[60s]" in rates[1]] == [True, True]
    counts = [form_of(request)["query"] for request in server.requests if "count_over_time" in request.body.decode()]
    assert len(counts) == 2  # the hours and the last minutes; none where the interval is given


def test_a_store_that_has_only_just_begun_to_scrape_shows_its_interval_by_its_last_minutes():
    def counts(form):
        # Seven samples in all: by the hour an interval of ten minutes, by the last five minutes of thirty seconds.
        return rows(({"namespace": "shop"}, points(form, "7" if "[3600s]" in form["query"] else "10")))

    with scripted_server(FakePrometheus(count_over_time=counts)) as server:
        read(server)
    rates = [form_of(request)["query"] for request in server.requests if "rate" in request.body.decode()]
    assert "[120s]" in rates[0]


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"bearer_token": "abc"}, "Bearer abc"),
        ({"username": "me", "password": "pw"}, "Basic bWU6cHc="),
        ({"headers": {"Authorization": "Custom x"}}, "Custom x"),
    ],
    ids=["bearer", "basic", "header"],
)
def test_credentials(settings, header):
    with scripted_server(FakePrometheus()) as server:
        read(server, **settings)

    assert {request.headers.get("Authorization") for request in server.requests} == {header}


def test_a_token_file_is_read_for_every_request(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")

    def rotate(_: dict[str, str]) -> Answer:
        token.write_text("second\n")
        return success(["shop"])

    with scripted_server(FakePrometheus(labels=rotate)) as server:
        read(server, bearer_token_file=token)
        token.unlink()
        with pytest.raises(SourceError, match=r"token file .* cannot be read"):
            read(server, bearer_token_file=token)

    assert [request.headers["Authorization"] for request in server.requests[:2]] == ["Bearer first", "Bearer second"]


def failing(times: int, answer: Answer) -> Callable[[dict[str, str]], Answer]:
    left = iter(range(times))
    return lambda form: answer if next(left, None) is not None else FakePrometheus.usual(form)


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        (Answer(500, b"oops"), [0.5, 1.0]),
        (Answer(503, b"", {"Retry-After": "7"}), [7.5, 8.0]),
        (Answer(429, b"", {"Retry-After": "Thu, 01 Jan 1970 02:47:00 GMT"}), [20.5, 1.0]),
        (Answer(502, b"<html>Bad Gateway</html>"), [0.5, 1.0]),
        (Answer(200, b'{"status":"success"' + b" " * 5000, cut_after=100), [0.5, 1.0]),
        (Answer(200, b"", cut_after=0, headers={"Transfer-Encoding": "chunked"}), [0.5, 1.0]),
    ],
    ids=["500", "503-seconds", "429-date", "502", "connection-lost-in-the-body", "chunk-missing"],
)
def test_what_may_pass_is_tried_again_after_a_growing_wait(answer, waits):
    clock = FakeClock()
    with scripted_server(FakePrometheus(**{"rate(": failing(2, answer)})) as server:
        usage = read(server, clock)

    assert clock.waits == waits
    assert (len(usage.series), usage.failures) == (2, ())
    assert usage.costs.queries == len(server.requests)


@pytest.mark.parametrize(
    ("answer", "message", "reason"),
    [
        (
            Answer(422, b'{"status":"error","errorType":"execution","error":"too many samples"}'),
            "HTTP 422: execution: too many samples",
            "PrometheusRefused",
        ),
        (Answer(400, b'{"status":"error","errorType":"bad_data","error":"parse error"}'), "bad_data: parse error", "PrometheusRefused"),
        (Answer(401, b"denied"), "HTTP 401: denied .*token", "PrometheusRefused"),
        (Answer(302, b"", {"Location": "https://login.example/"}), "redirects to https://login.example/", "PrometheusRefused"),
        (Answer(200, b"<html>Sign in</html>"), "web page", "PrometheusBadResponse"),
        (Answer(200, b'{"status":"success","data":{"resultType":"matr'), "breaks off", "PrometheusBadResponse"),
        (Answer(200, b'{"status":"error","errorType":"timeout","error":"x"}'), "timeout: x", "PrometheusRefused"),
        (success({"resultType": "scalar", "result": [1, "2"]}), "resultType 'scalar'", "PrometheusBadResponse"),
    ],
    ids=["422", "400", "401", "302", "html", "truncated", "error-with-200", "scalar"],
)
def test_what_will_not_pass_is_said_at_once(answer, message, reason):
    clock = FakeClock()
    with scripted_server(FakePrometheus(**{"rate(": lambda _: answer})) as server, pytest.raises(SourceError, match=message) as caught:
        read(server, clock)

    assert caught.value.reason == reason
    assert clock.waits == []
    assert "\n" not in str(caught.value)
    assert server.url in str(caught.value)


def test_retries_end():
    clock = FakeClock()
    with scripted_server(lambda _: Answer(500, b"oops")) as server, pytest.raises(SourceError, match=r"HTTP 500: oops .*after 4 attempts"):
        read(server, clock, max_retries=3)

    assert clock.waits == [0.5, 1, 2]


def test_retries_end_before_the_deadline():
    clock = FakeClock()
    answer = Answer(503, b"busy", {"Retry-After": "40"})
    with scripted_server(lambda _: answer) as server, pytest.raises(SourceError, match=r"busy .*after 2 attempts: no time left"):
        read(server, clock, deadline_seconds=60, max_retries=9)

    assert clock.waits == [40.5]


def test_a_stopped_clock_ends_the_waiting():
    clock = FakeClock()
    clock.stop()
    with scripted_server(lambda _: Answer(500)) as server, pytest.raises(SourceError, match="stopped"):
        read(server, clock)

    assert len(server.requests) == 1


def test_nobody_listens():
    with scripted_server(FakePrometheus()) as server:
        pass  # the port is free again
    clock = FakeClock()
    with pytest.raises(SourceError, match=r"no connection: .*Connection refused.*given up after 2 attempts") as caught:
        read(server, clock, max_retries=1)

    assert caught.value.reason == "PrometheusUnreachable"
    assert "object at" not in str(caught.value)


def test_a_name_that_does_not_resolve():
    with (
        PrometheusSource(PrometheusSettings(url="http://prometheus.invalid", max_retries=0), FakeClock()) as source,
        pytest.raises(SourceError, match=r"http://prometheus.invalid.*: no connection: (?!.*object at)"),
    ):
        source.namespaces()


def test_a_server_that_does_not_answer_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes the connection, and nobody reads from it
        settings = PrometheusSettings(url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.2, max_retries=0)
        with PrometheusSource(settings, FakeClock()) as source, pytest.raises(SourceError, match=r"no answer within 0\.2 s") as caught:
            source.namespaces()

    assert caught.value.reason == "PrometheusTimeout"


def test_a_body_that_comes_too_slowly_is_given_up():
    clock = FakeClock()

    def slow(form: dict[str, str]) -> Answer:
        clock.time += 61
        return FakePrometheus.usual(form)

    with scripted_server(FakePrometheus(**{"rate(": slow})) as server, pytest.raises(SourceError, match="no answer within 60 s"):
        read(server, clock, timeout_seconds=60, max_retries=0)


def test_the_deadline_ends_the_read_between_queries():
    clock = FakeClock()

    def slow(form: dict[str, str]) -> Answer:
        clock.time += 30
        return FakePrometheus.usual(form)

    with scripted_server(FakePrometheus(**{"": slow})) as server, pytest.raises(SourceError, match=r"no answer within|no time left"):
        read(server, clock, deadline_seconds=100, max_retries=0)

    assert len(server.requests) < 6


def test_one_bad_namespace_does_not_stop_the_others():
    prometheus = FakePrometheus(**{'namespace="bad"': lambda _: Answer(422, b'{"errorType":"execution","error":"no","status":"error"}')})
    prometheus.namespaces = ["bad", "good", "shop"]
    with scripted_server(prometheus) as server:
        usage = read(server)

    assert {one.container.namespace for one in usage.series} == {"good", "shop"}
    (failure,) = usage.failures
    assert (failure.reason, failure.subject) == ("PrometheusRefused", "bad")
    assert failure.message.startswith("bad: Prometheus http://")
    assert usage.costs.queries == len(server.requests)


def test_all_namespaces_bad_is_an_error():
    prometheus = FakePrometheus(**{"rate(": lambda _: Answer(422, b"no")})
    prometheus.namespaces = ["a", "b"]
    with scripted_server(prometheus) as server, pytest.raises(SourceError, match=r"not one of 2 namespaces.*first: a: .*HTTP 422: no"):
        read(server)


def test_samples_that_are_none_are_dropped_and_counted():
    container = {"namespace": "shop", "pod": "web-1", "container": "app"}
    bad = [[60, "NaN"], [120, "+Inf"], [180, "-Inf"], [240, "-1"], [300, "2"]]
    with scripted_server(FakePrometheus(**{"rate(": lambda _: rows((container, bad))})) as server:
        usage = read(server)

    assert usage.series[0].values.tolist() == [2.0]
    found = {finding.reason: (finding.subject, finding.count) for finding in usage.findings}
    assert found[Reason.NON_FINITE_SAMPLES] == ("shop/web-1/app", 3)
    assert found[Reason.NEGATIVE_SAMPLES] == ("shop/web-1/app", 1)
    assert found[Reason.FEW_SAMPLES] == ("shop/web-1/app", 1)


def test_duplicates_resets_missing_labels_unknown_owners_and_warnings_are_said():
    container = {"namespace": "shop", "pod": "web-1", "container": "app"}
    overrides = {
        "count by": lambda form: rows((container, points(form, "2"))),
        "resets(": lambda _: rows((container, [[3600, "4"]])),
        "kube_pod_owner": lambda _: success({"resultType": "vector", "result": []}, warnings=["store gateway is away"]),
        "rate(": lambda form: rows((container, points(form, "1")), ({"namespace": "shop", "pod_name": "x"}, points(form, "1"))),
    }
    with scripted_server(FakePrometheus(**overrides)) as server:
        usage = read(server)

    assert {finding.reason: (finding.subject, finding.count) for finding in usage.findings} == {
        Reason.DUPLICATE_SERIES: ("shop/web-1/app", 2),
        Reason.COUNTER_RESETS: ("shop/web-1/app", 4),
        Reason.LABELS_MISSING: ("shop", 1),
        Reason.OWNER_UNKNOWN: ("shop", 1),
        Reason.SERVER_WARNING: ("shop", 1),
    }
    assert len(usage.series) == 2


def test_kills_come_with_the_request_of_the_moment():
    container = {"namespace": "shop", "pod": "web-1", "container": "app"}
    overrides = {
        "max_over_time(kube_pod_container_status_last_terminated_reason": lambda _: rows((container, [[3600, "1"]])),
        "last_terminated_reason": lambda _: rows((container, [[moment, "1"] for moment in range(1200, 3601, 60)])),
        "last_terminated_timestamp": lambda _: rows((container, [[moment, "1190"] for moment in range(1200, 3601, 60)])),
        "resource_requests": lambda form: rows((container, points(form, "67108864"))),
    }
    with scripted_server(FakePrometheus(**overrides)) as server:
        usage = read(server)

    assert usage.ooms == (OomKill(ContainerRef("shop", "web-1", "app"), 1190.0, 67108864, None),)
    evidence = [form_of(request) for request in server.requests if 'pod=~"web-1"' in form_of(request).get("query", "")]
    assert len(evidence) == 5
    assert {form["start"] for form in evidence} == {"0.000"}


def test_a_kill_without_a_known_request_is_said():
    container = {"namespace": "shop", "pod": "web-1", "container": "app"}
    overrides = {
        "last_terminated_reason": lambda form: rows((container, points(form, "1") if "start" in form else [[3600, "1"]])),
        "restarts_total": lambda form: rows((container, [[at, "1" if at >= 600 else "0"] for at, _ in points(form, "")])),
    }
    with scripted_server(FakePrometheus(**overrides)) as server:
        usage = read(server)

    assert usage.ooms == (OomKill(ContainerRef("shop", "web-1", "app"), 600.0, 0, None),)
    assert [finding.reason for finding in usage.findings] == [Reason.OOM_WITHOUT_REQUEST]


def test_silence_is_said():
    with scripted_server(FakePrometheus(**{"": lambda _: rows()})) as server:
        asked = read(server, namespaces=["a", "b", "a"])
    with scripted_server(FakePrometheus(labels=lambda _: success([]))) as server:
        listed = read(server)

    assert [(finding.reason, finding.subject) for finding in asked.findings] == [(Reason.NO_DATA, "a"), (Reason.NO_DATA, "b")]
    assert [(finding.reason, finding.subject) for finding in listed.findings] == [(Reason.NO_DATA, "Prometheus")]


def test_namespaces_are_sorted_and_not_empty():
    clock = FakeClock()
    with (
        scripted_server(FakePrometheus(labels=lambda _: success(["b", "", "a"]))) as server,
        PrometheusSource(PrometheusSettings(url=f"{server.url}/prefix/"), clock) as source,
    ):
        assert source.namespaces() == ("a", "b")

    (request,) = server.requests
    assert urlsplit(request.path).path == "/prefix/api/v1/label/namespace/values"
    metrics = "container_cpu_usage_seconds_total|container_memory_working_set_bytes"
    assert form_of(request)["match[]"] == f'{{__name__=~"{metrics}",container!="",container!="POD",namespace!=""}}'


def test_an_empty_window_is_refused_before_anything_is_asked():
    with scripted_server(FakePrometheus()) as server, pytest.raises(UsageError, match="before it starts"):
        read(server, window=Window(100, 100, 60))

    assert server.requests == []


def test_a_defect_met_in_one_namespace_is_logged_and_does_not_stop_the_others(monkeypatch, caplog):
    read_one = NamespaceReader.read

    def defective(reader):
        if reader.namespace == "bad":
            raise KeyError("pod")
        return read_one(reader)

    monkeypatch.setattr(NamespaceReader, "read", defective)
    with scripted_server(FakePrometheus()) as server:
        usage = read(server, namespaces=["bad", "shop"])

    assert {one.container.namespace for one in usage.series} == {"shop"}
    assert [(failure.subject, failure.reason) for failure in usage.failures] == [("bad", "SourceFailed")]
    assert "KeyError" in usage.failures[0].message
    assert any(record.exc_info for record in caplog.records)


def test_the_nodes_of_pods_are_read_for_the_whole_window():
    asked = []

    def info(form):
        asked.append(form["query"])
        if "bank" in form["query"]:
            return Answer(422, b"no")
        return rows(*(({"pod": pod, "node": node}, [[1, "1"]]) for pod, node in (("agent-1", "n1"), ("agent-2", "n2"))))

    with (
        scripted_server(FakePrometheus(kube_pod_info=info)) as server,
        PrometheusSource(PrometheusSettings(url=server.url), FakeClock(), jitter=lambda: 1.0) as source,
    ):
        found = source.fetch_pod_nodes(WINDOW, ["shop", "bank"])
    assert found.nodes == {("shop", "agent-1"): "n1", ("shop", "agent-2"): "n2"}
    assert [failure.subject for failure in found.failures] == ["bank"]
    assert 'max by (pod,node) (last_over_time(kube_pod_info{namespace="shop",node!=""}[3600s]))' in asked
