"""Metrics and probes over HTTP."""

import enum
import socket
import urllib.error
import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from vpa_ippr.api.errors import UsageError
from vpa_ippr.cluster.telemetry import Exposition, Telemetry, api_observer


class Reason(enum.StrEnum):
    DONE = "Done"
    REFUSED = "Refused"


def fetch(port, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the address is ours
            return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["Content-Type"]


def samples(telemetry):
    text = telemetry.render()[0].decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vpa_ippr_")
    }


def test_every_series_is_there_from_the_start():
    telemetry = Telemetry()
    resizes = telemetry.counter("resizes_total", "Resizes.", reason=Reason, kind=("up", "down"))
    telemetry.counter("cycles_total", "Cycles.")
    assert samples(telemetry) == {
        ("vpa_ippr_resizes_total", *sorted((reason, kind))): 0.0 for reason in Reason for kind in ("up", "down")
    } | {("vpa_ippr_cycles_total",): 0.0}
    resizes.inc(reason=Reason.DONE, kind="up")
    resizes.inc(2, kind="up", reason="Done")
    assert samples(telemetry)["vpa_ippr_resizes_total", "Done", "up"] == 3.0


@pytest.mark.parametrize("labels", [{}, {"reason": "Odd"}, {"reason": "Done", "more": "x"}, {"other": "Done"}])
def test_labels_that_a_metric_was_not_made_for_are_an_error(labels):
    counter = Telemetry().counter("resizes_total", "Resizes.", reason=Reason)
    with pytest.raises(ValueError, match="resizes"):
        counter.inc(**labels)


def test_gauges_and_histograms():
    telemetry = Telemetry()
    telemetry.gauge("pending_pods", "Pods.").set(7)
    telemetry.follow("cache_age_seconds", "Age.", lambda: 2.5)
    telemetry.histogram("cycle_seconds", "Seconds.", (1.0, 10.0), job=("cycle",)).observe(3.0, job="cycle")
    found = samples(telemetry)
    assert (found["vpa_ippr_pending_pods",], found["vpa_ippr_cache_age_seconds",]) == (7.0, 2.5)
    assert (found["vpa_ippr_cycle_seconds_bucket", "1.0", "cycle"], found["vpa_ippr_cycle_seconds_bucket", "10.0", "cycle"]) == (0.0, 1.0)


def test_a_counter_is_named_as_prometheus_wants_it():
    with pytest.raises(ValueError, match="_total"):
        Telemetry().counter("resizes", "Resizes.")


def test_nothing_is_shared_with_the_process_or_another_telemetry():
    first, second = Telemetry(), Telemetry()
    for telemetry in (first, second):
        telemetry.counter("cycles_total", "Cycles.")
    assert not any(metric.name.startswith("vpa_ippr") for metric in prometheus_client.REGISTRY.collect())
    assert "_created" not in first.render()[0].decode()


def test_attempts_at_requests_are_counted():
    telemetry = Telemetry()
    observe = api_observer(telemetry)
    for method, status in (("GET", 200), ("GET", 201), ("PATCH", 409), ("PATCH", 429), ("GET", 503), ("DELETE", 0), ("GET", 404)):
        observe(method, status, 0.01)
    found = samples(telemetry)
    counted = {labels[1:]: value for labels, value in found.items() if labels[0].endswith("requests_total") and value}
    assert counted == {
        ("2xx", "GET"): 2.0,
        ("409", "PATCH"): 1.0,
        ("429", "PATCH"): 1.0,
        ("5xx", "GET"): 1.0,
        ("DELETE", "none"): 1.0,
        ("4xx", "GET"): 1.0,
    }


def test_metrics_and_probes_are_served():
    telemetry = Telemetry()
    telemetry.counter("cycles_total", "Cycles.").inc()
    trouble = {"caches": None, "lease": None}

    def broken():
        raise RuntimeError("odd")

    ready = {name: lambda name=name: trouble[name] for name in trouble}
    with Exposition(telemetry, ("127.0.0.1", 0), ready=ready, healthy={"loop": lambda: None}) as served:
        status, text, content_type = fetch(served.port, "/metrics")
        assert (status, "vpa_ippr_cycles_total 1.0" in text, content_type.partition(";")[0]) == (200, True, "text/plain")
        assert fetch(served.port, "/metrics", Accept="application/openmetrics-text")[2].startswith("application/openmetrics-text")
        assert fetch(served.port, "/healthz")[:2] == (200, "ok\n")
        assert fetch(served.port, "/readyz?verbose")[:2] == (200, "ok\n")
        trouble["caches"] = "pods not listed yet"
        assert fetch(served.port, "/readyz")[:2] == (503, "caches: pods not listed yet\n")
        ready["lease"] = broken
        assert fetch(served.port, "/readyz")[1].endswith("lease: RuntimeError: odd\n")
        assert fetch(served.port, "/healthz")[0] == 200
        assert fetch(served.port, "/secrets")[0] == 404
    with pytest.raises(urllib.error.URLError):
        fetch(served.port, "/healthz")


def test_all_addresses_are_served_when_no_host_is_given():
    with Exposition(Telemetry(), ("", 0)) as served:
        assert fetch(served.port, "/healthz")[0] == 200


def test_a_client_that_hangs_up_early_disturbs_nobody(caplog, capfd):
    with Exposition(Telemetry(), ("127.0.0.1", 0)) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as half:
            half.sendall(b"GET /met")
        assert fetch(served.port, "/healthz")[0] == 200
    assert (caplog.records, capfd.readouterr().err) == ([], "")


def test_an_address_in_use_is_one_line():
    with Exposition(Telemetry(), ("127.0.0.1", 0)) as served, pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{served.port}"):
        Exposition(Telemetry(), ("127.0.0.1", served.port))
