"""Evidence from a scripted server: every kind is asked for, none is missed when it is not there, and no failure is an error."""

from collections.abc import Callable
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from support.clocks import FixedClock
from support.http import Answer, Request, scripted_server
from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.series import ContainerRef, EvidenceKind, Window
from vpa_ippr.metrics.prometheus import PrometheusSource
from vpa_ippr.metrics.quality import Reason
from vpa_ippr.metrics.queries import EVIDENCE_METRICS
from vpa_ippr.metrics.settings import PrometheusSettings

WINDOW = Window(0, 3600, 60)
POINTS = [60.0 * minute for minute in range(1, 61)]


def success(data: object) -> Answer:
    return Answer(200, msgspec.json.encode({"status": "success", "data": data}))


def rows(form: dict[str, str], namespace: str, text: str) -> Answer:
    start, end, step = (round(float(form[name])) for name in ("start", "end", "step"))
    labels = {"namespace": namespace, "pod": "web-1", "container": "app"}
    return success({"resultType": "matrix", "result": [{"metric": labels, "values": [[at, text] for at in range(start, end + 1, step)]}]})


def prometheus(answers: Callable[[str, str], str | Answer | None], namespaces: tuple[str, ...] = ("shop",)) -> Callable[[Request], Answer]:
    """Answers each evidence query with what ``answers`` gives for namespace and query: a value for all points, an answer, or nothing."""

    def respond(request: Request) -> Answer:
        if "/label/namespace/" in urlsplit(request.path).path:
            return success(namespaces)
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        namespace = form["query"].split('namespace="')[1].split('"')[0]
        if form["query"].startswith("count by"):
            return rows(form, namespace, "1")
        found = answers(namespace, form["query"])
        if found is None:
            return success({"resultType": "matrix", "result": []})
        return rows(form, namespace, found) if isinstance(found, str) else found

    return respond


@contextmanager
def source(server):
    settings = PrometheusSettings(url=server.url, scrape_interval_seconds=15, max_retries=0)
    with PrometheusSource(settings, FixedClock(10_000.0)) as opened:
        yield opened


def value_of(query: str) -> str:
    """A different value for each kind."""
    return next(str(index) for index, kind in enumerate(EvidenceKind) if EVIDENCE_METRICS[kind][0] + "{" in query)


def test_each_kind_comes_on_the_grid_of_the_usage() -> None:
    with scripted_server(prometheus(lambda _, query: value_of(query))) as server, source(server) as opened:
        evidence = opened.fetch_evidence(WINDOW)

    assert [(one.kind, one.values[0]) for one in evidence.series] == [(kind, float(index)) for index, kind in enumerate(EvidenceKind)]
    for one in evidence.series:
        assert one.container == ContainerRef("shop", "web-1", "app")
        assert one.timestamps.tolist() == POINTS
        assert len(set(one.values.tolist())) == 1
    assert (evidence.findings, evidence.failures) == ((), ())
    assert evidence.costs.queries == len(server.requests)
    assert evidence.costs.samples >= len(EvidenceKind) * len(POINTS)


def test_what_is_not_there_is_one_finding_over_all_namespaces() -> None:
    def answers(namespace: str, query: str) -> str | None:
        # Pressure is nowhere; only one of two namespaces has a container with a CPU limit.
        if "pressure" in query or ("cfs" in query and namespace == "a"):
            return None
        return "1"

    with scripted_server(prometheus(answers, ("a", "b"))) as server, source(server) as opened:
        evidence = opened.fetch_evidence(WINDOW)

    (finding,) = evidence.findings
    assert (finding.reason, finding.subject, finding.count) == (Reason.NO_EVIDENCE, "Prometheus", 2)
    assert finding.message == (
        "Prometheus: nothing from container_pressure_cpu_waiting_seconds_total, container_pressure_memory_waiting_seconds_total:"
        " recommendations do without"
    )
    assert evidence.failures == ()


def test_a_point_that_is_no_number_is_left_out() -> None:
    with scripted_server(prometheus(lambda _, query: "NaN" if "rss" in query else "1")) as server, source(server) as opened:
        evidence = opened.fetch_evidence(WINDOW)

    assert {one.kind for one in evidence.series} == set(EvidenceKind) - {EvidenceKind.RSS}


@pytest.mark.parametrize("bad", [("a",), ("a", "b")], ids=["one-namespace", "all"])
def test_what_cannot_be_read_is_a_failure_and_no_error(bad) -> None:
    def answers(namespace: str, _: str) -> str | Answer:
        return Answer(422, b'{"status":"error","errorType":"execution","error":"too many samples"}') if namespace in bad else "1"

    with scripted_server(prometheus(answers, ("a", "b"))) as server, source(server) as opened:
        evidence = opened.fetch_evidence(WINDOW)

    assert [(failure.subject, failure.reason) for failure in evidence.failures] == [(name, "PrometheusRefused") for name in bad]
    assert {one.container.namespace for one in evidence.series} == {"a", "b"} - set(bad)
    assert evidence.findings == ()


def test_namespaces_that_cannot_be_listed_are_an_error() -> None:
    with (
        scripted_server(lambda _: Answer(403, b"no")) as server,
        source(server) as opened,
        pytest.raises(SourceError, match="HTTP 403"),
    ):
        opened.fetch_evidence(WINDOW)
