"""Answers of Prometheus, good and bad, as literal bytes."""

import re

import numpy as np
import pytest

from vpa_ippr.api.errors import SourceError
from vpa_ippr.metrics.decode import decode_rows, decode_strings, http_error


def matrix(result: bytes) -> bytes:
    return b'{"status":"success","data":{"resultType":"matrix","result":[' + result + b"]}}"


def test_a_range_answer_becomes_labels_and_arrays():
    body = matrix(
        b'{"metric":{"pod":"a","container":"c"},"values":[[1700000000,"0.25"],[1700000060.5,"1e3"]]},'
        b'{"metric":{"pod":"b"},"values":[[1700000000,"7"]]}'
    )
    first, second = decode_rows(body, "here").rows

    assert first.labels == {"pod": "a", "container": "c"}
    assert first.timestamps.tolist() == [1700000000.0, 1700000060.5]
    assert first.values.tolist() == [0.25, 1000.0]
    assert first.values.flags["C_CONTIGUOUS"]
    assert (second.labels, second.values.tolist()) == ({"pod": "b"}, [7.0])


def test_an_instant_answer_has_one_point_a_series():
    body = b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[5,"3"]}]},"warnings":["partial"]}'
    answer = decode_rows(body, "here")

    assert (answer.rows[0].timestamps.tolist(), answer.rows[0].values.tolist()) == ([5.0], [3.0])
    assert (answer.warnings, answer.samples) == (("partial",), 1)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["NaN", "1"], [np.nan, 1]),
        (["+Inf", "1"], [np.inf, 1]),
        (["-Inf", "NaN", "2.5"], [-np.inf, np.nan, 2.5]),
        (["1e+308", "1e-300", "-0"], [1e308, 1e-300, 0]),
        (["123456789012345678"], [123456789012345678.0]),
    ],
    ids=["nan", "inf", "mixed", "extreme", "integer"],
)
def test_what_is_not_a_number_is_read_as_such(texts, values):
    points = ",".join(f'[{index},"{text}"]' for index, text in enumerate(texts))
    (row,) = decode_rows(matrix(b'{"metric":{},"values":[' + points.encode() + b"]}"), "here").rows

    np.testing.assert_array_equal(row.values, values)
    assert row.timestamps.tolist() == list(range(len(texts)))


@pytest.mark.parametrize(
    "result",
    [b"", b'{"metric":{},"values":[]}', b'{"metric":{},"histograms":[[1,{"count":"2"}]]}'],
    ids=["no-series", "no-points", "histograms"],
)
def test_an_empty_answer_has_no_samples(result):
    assert decode_rows(matrix(result), "here").samples == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "here: answered with a web page.*URL"),
        (b"\n <html>", "web page"),
        (b"", "here: cannot read the answer.*empty body"),
        (matrix(b'{"metric":{},"values":[[1,"2"')[:90], "here: the JSON breaks off after 90 bytes"),
        (b"upstream connect error", "cannot read the answer.*upstream connect error"),
        (b"\xff\xfe\x00", "cannot read the answer"),
        (b"[]", "cannot read the answer"),
        (b'{"status":"success"}', "cannot read the answer"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "resultType 'scalar'"),
        (b'{"status":"success","data":{"resultType":"streams","result":[]}}', "resultType 'streams'"),
        (matrix(b'{"metric":{},"values":[[1,"many"]]}'), "cannot read the answer.*many"),
        (matrix(b'{"metric":{},"values":[["x","1"]]}'), "cannot read the answer"),
        (matrix(b'{"metric":{"pod":1},"values":[]}'), "cannot read the answer"),
        (b'{"status":"error","errorType":"execution","error":"query timed\\nout"}', "here: execution: query timed out"),
    ],
)
def test_a_bad_answer_is_one_clear_line(body, message):
    with pytest.raises(SourceError, match=message) as caught:
        decode_rows(body, "here")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_label_values():
    assert decode_strings(b'{"status":"success","data":["a","b"]}', "here") == ("a", "b")
    with pytest.raises(SourceError, match="here: cannot read"):
        decode_strings(b'{"status":"success","data":{"a":1}}', "here")


@pytest.mark.parametrize(
    ("status", "body", "message", "reason"),
    [
        (
            400,
            b'{"status":"error","errorType":"bad_data","error":"too many points"}',
            "HTTP 400: bad_data: too many points$",
            "PrometheusRefused",
        ),
        (422, b'{"status":"error","errorType":"execution","error":"boom"}', "HTTP 422: execution: boom$", "PrometheusRefused"),
        (401, b"Unauthorized\n", "HTTP 401: Unauthorized .*token", "PrometheusRefused"),
        (404, b"404 page not found", "HTTP 404: 404 page not found .*before /api/v1", "PrometheusRefused"),
        (502, b"<html>\n<h1>Bad Gateway</h1></html>", "HTTP 502: <html> <h1>Bad Gateway</h1></html>$", "PrometheusFailed"),
        (503, b"", "HTTP 503: empty body$", "PrometheusFailed"),
        (429, b'{"status":"error"}', "HTTP 429: no explanation$", "PrometheusFailed"),
        (500, b"x" * 5000, r"HTTP 500: x{120}\.\.\.$", "PrometheusFailed"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_an_error_answer_shows_what_the_server_said(status, body, message, reason):
    error = http_error(status, body, "here")

    assert re.search(f"^here: {message}", str(error))
    assert error.reason == reason
