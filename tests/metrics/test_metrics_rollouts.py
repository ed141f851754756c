"""Guards of rollouts, from a scripted server."""

from urllib.parse import parse_qs

import msgspec
import pytest

from support.clocks import FixedClock
from support.http import Answer, scripted_server
from vpa_ippr.api.errors import SourceError
from vpa_ippr.metrics.rollouts import PrometheusSignals
from vpa_ippr.metrics.settings import PrometheusSettings

NOW = 10_000.0


def vector(*values: str) -> Answer:
    rows = [{"metric": {"pod": str(number)}, "value": [NOW, value]} for number, value in enumerate(values)]
    return success({"resultType": "vector", "result": rows})


def success(data: object) -> Answer:
    return Answer(200, msgspec.json.encode({"status": "success", "data": data}))


def evaluated(answer: Answer, query: str = "up > 1") -> tuple[float | None, list[dict[str, list[str]]]]:
    with scripted_server(lambda _: answer) as server:
        with PrometheusSignals(PrometheusSettings(url=server.url, max_retries=0), FixedClock(NOW)) as guards:
            value = guards.evaluate(query)
        return value, [parse_qs(request.body.decode()) for request in server.requests]


@pytest.mark.parametrize(
    ("values", "largest"),
    [([], None), (["0"], 0.0), (["-1", "3", "2"], 3.0), (["NaN", "0.5"], 0.5), (["NaN"], None), (["+Inf"], float("inf"))],
)
def test_the_largest_value_of_the_answer(values, largest):
    assert evaluated(vector(*values))[0] == largest


def test_the_query_is_asked_once_as_it_is_at_this_moment():
    query = 'sum(rate(x{pod="a+b&c"}[5m])) > 0'
    assert evaluated(vector("1"), query)[1] == [{"query": [query], "time": ["10000.000"], "timeout": ["60s"]}]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(400, b'{"status": "error", "errorType": "bad_data", "error": "parse error"}'),
        Answer(503, b"down"),
        Answer(200, b"<html>"),
        success({"resultType": "scalar", "result": [NOW, "1"]}),
    ],
    ids=["refused", "down", "login-page", "scalar"],
)
def test_what_is_no_answer_is_an_error(answer):
    with pytest.raises(SourceError):
        evaluated(answer)
