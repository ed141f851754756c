from __future__ import annotations

import math
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from support import asgi
from vpa_ippr.sandbox.promjson import number_text, scalar_text, time_text
from vpa_ippr.sandbox.promserver import prometheus_app
from vpa_ippr.sandbox.tsdb import Tsdb


class FixedClock:
    def now(self) -> float:
        return 250.0

    def wait_until(self, _: float) -> bool:
        raise AssertionError("the endpoint never waits")

    def stop(self) -> None:
        raise AssertionError("the endpoint never stops the clock")


@pytest.fixture(scope="module")
def app() -> Starlette:
    tsdb = Tsdb()
    for at in range(0, 301, 10):
        tsdb.append({"__name__": "cpu", "pod": 'we"b', "namespace": "a"}, at, at * 1.0)
        tsdb.append({"__name__": "mem", "pod": "db"}, at, math.inf if at == 100 else at * 0.5)
    return prometheus_app(tsdb, FixedClock())


def _success(data: Any) -> dict[str, Any]:
    return {"status": "success", "data": data}


def _error(kind: str, text: str) -> dict[str, Any]:
    return {"status": "error", "errorType": kind, "error": text}


WEB = {"__name__": "cpu", "namespace": "a", "pod": 'we"b'}


DB = {"__name__": "mem", "pod": "db"}


def _vector(*value: Any) -> dict[str, Any]:
    return {"resultType": "vector", "result": [{"metric": WEB, "value": list(value)}]}


def _matrix(metric: dict[str, str], *values: list[Any]) -> dict[str, Any]:
    return {"resultType": "matrix", "result": [{"metric": metric, "values": list(values)}]}


def _range(query: str, start: str, end: str, step: str) -> dict[str, str]:
    return {"query": query, "start": start, "end": end, "step": step}


@pytest.mark.parametrize(
    ("path", "params", "data"),
    [
        ("query", {"query": "cpu"}, _vector(250, "250")),
        ("query", {"query": "cpu", "time": "12.5"}, _vector(12.5, "10")),
        ("query", {"query": "cpu", "time": "1970-01-01T00:01:00Z", "timeout": "5s"}, _vector(60, "60")),
        ("query", {"query": "1/3"}, {"resultType": "scalar", "result": [250, "0.3333333333333333"]}),
        ("query", {"query": '"a\\"b"'}, {"resultType": "string", "result": [250, 'a"b']}),
        ("query", {"query": "mem[20s]", "time": "100"}, _matrix(DB, [80, "40"], [90, "45"], [100, "+Inf"])),
        ("query", {"query": "none"}, {"resultType": "vector", "result": []}),
        ("query_range", _range("mem", "95", "110", "5"), _matrix(DB, [95, "45"], [100, "+Inf"], [105, "+Inf"], [110, "55"])),
        ("query_range", _range("mem - mem", "100", "100", "1m"), _matrix({"pod": "db"}, [100, "NaN"])),
        ("query_range", _range("2", "0", "0.5", "0.25"), _matrix({}, [0, "2"], [0.25, "2"], [0.5, "2"])),
        ("query_range", _range("none", "0", "11000", "1"), {"resultType": "matrix", "result": []}),
        ("labels", {}, ["__name__", "namespace", "pod"]),
        ("labels", {"match[]": "mem"}, ["__name__", "pod"]),
        ("label/pod/values", {}, ["db", 'we"b']),
        ("label/pod/values", {"match[]": 'mem{namespace=""}'}, ["db"]),
        ("label/pod/values", {"start": "1000"}, []),
        ("series", {"match[]": "cpu"}, [WEB]),
        ("metadata", {}, {}),
    ],
    ids=str,
)
def test_answers(app: Starlette, path: str, params: dict[str, str], data: Any) -> None:
    answer = asgi.get(app, f"/api/v1/{path}", params)
    assert (answer.status, answer.json()) == (200, _success(data))
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("predict_linear(mem[5m], 1)", "function 'predict_linear'"),
        ("stddev(mem)", "aggregation 'stddev'"),
        ("cpu atan2 cpu", "operator 'atan2'"),
    ],
)
def test_an_unsupported_query_is_refused_by_name(app: Starlette, query: str, what: str) -> None:
    for path, params in (("query", {"query": query}), ("query_range", _range(query, "0", "0", "1"))):
        answer = asgi.get(app, f"/api/v1/{path}", params)
        assert (answer.status, answer.json()) == (422, _error("execution", f"{what} is not supported by this endpoint"))


NOT_A_TIME = "cannot parse {} to a valid timestamp"
TOO_MANY = "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)"
BAD_STEP = "zero or negative query resolution step widths are not accepted. Try a positive integer"
BAD_TYPE = 'invalid expression type "range vector" for range query, must be Scalar or instant Vector'


@pytest.mark.parametrize(
    ("path", "params", "text"),
    [
        ("query", {"query": "sum("}, 'invalid parameter "query": parse error: unclosed left parenthesis'),
        (
            "query",
            {"query": "1", "time": "now"},
            f"invalid parameter \"time\": Invalid time value for 'time': {NOT_A_TIME}".format('"now"'),
        ),
        (
            "query",
            {"query": "1", "time": "NaN"},
            f"invalid parameter \"time\": Invalid time value for 'time': {NOT_A_TIME}".format('"NaN"'),
        ),
        ("query", {"query": "1", "timeout": "x"}, 'invalid parameter "timeout": cannot parse "x" to a valid duration'),
        ("query_range", _range("cpu", "0", "11001", "1"), TOO_MANY),
        ("query_range", _range("cpu", "2", "1", "1"), 'invalid parameter "end": end timestamp must not be before start time'),
        ("query_range", _range("cpu", "0", "1", "0"), f'invalid parameter "step": {BAD_STEP}'),
        ("query_range", _range("cpu", "", "1", "1"), f'invalid parameter "start": {NOT_A_TIME}'.format('""')),
        ("query_range", _range("cpu[5m]", "0", "1", "1"), BAD_TYPE),
        ("series", {}, "no match[] parameter provided"),
        ("label/a-b/values", {}, 'invalid label name: "a-b"'),
        ("series", {"match[]": "rate(cpu[5m])"}, "invalid parameter \"match[]\": 'rate(cpu[5m])' is not a plain series selector"),
        ("series", {"match[]": "cpu @ 5"}, "invalid parameter \"match[]\": 'cpu @ 5' is not a plain series selector"),
    ],
    ids=str,
)
def test_bad_data(app: Starlette, path: str, params: dict[str, str], text: str) -> None:
    answer = asgi.get(app, f"/api/v1/{path}", params)
    assert (answer.status, answer.json()) == (400, _error("bad_data", text))


def test_a_form_is_read_before_the_url(app: Starlette) -> None:
    answer = asgi.post_form(app, "/api/v1/query", {"query": "1", "time": "5"}, {"query": "2"})
    assert answer.json() == _success({"resultType": "scalar", "result": [5, "1"]})


def test_several_selectors_give_the_union(app: Starlette) -> None:
    answer = asgi.post_form(app, "/api/v1/series", [("match[]", "cpu"), ("match[]", '{pod=~".+"}')])
    assert answer.json() == _success([WEB, {"__name__": "mem", "pod": "db"}])


def test_it_can_be_mounted_under_a_prefix(app: Starlette) -> None:
    outer = Starlette(routes=[Mount("/prom/etheus", app=app)])
    assert asgi.get(outer, "/prom/etheus/api/v1/query", {"query": "1"}).status == 200
    assert asgi.get(outer, "/prom/etheus/-/ready").body == b"Prometheus Server is Ready.\n"


@pytest.mark.parametrize(
    ("path", "status"), [("/-/ready", 200), ("/-/healthy", 200), ("/api/v1/status/buildinfo", 200), ("/api/v1/rules", 404)]
)
def test_other_paths(app: Starlette, path: str, status: int) -> None:
    assert asgi.get(app, path).status == status


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (5.0, "5"),
        (0.1, "0.1"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-07"),
        (123456789012345680.0, "123456789012345680"),
        (1e21, "1e+21"),
        (-2.5e22, "-2.5e+22"),
        (0.00001234, "0.00001234"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_scalar_has_no_exponent() -> None:
    assert (scalar_text(1e21), scalar_text(1e-7), scalar_text(2.0)) == ("1" + "0" * 21, "0.0000001", "2")


@pytest.mark.parametrize(("millis", "text"), [(0, "0"), (1500, "1.500"), (-1, "-0.001"), (1_700_000_000_007, "1700000000.007")])
def test_times_have_no_fraction_or_three_digits(millis: int, text: str) -> None:
    assert time_text(millis) == text
