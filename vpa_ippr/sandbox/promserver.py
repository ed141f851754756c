"""Prometheus's HTTP API over the sandbox's database, for the calls that clients of ours and common tools make.

``prometheus_app`` can be mounted under any prefix. Answers, errors and limits are those of Prometheus 2.42; a query that the
engine does not support is answered 422 with an ``error`` that names what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from urllib.parse import parse_qsl

import msgspec
import promql_parser
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from vpa_ippr.api.clock import Clock
from vpa_ippr.sandbox.promjson import failure, instant_data, range_data, success
from vpa_ippr.sandbox.promlabels import LABEL_NAME, BadQueryDataError, Labels, Matcher, QueryFailedError, UnsupportedQueryError
from vpa_ippr.sandbox.promql import parse, query_instant, query_range, selector_matchers
from vpa_ippr.sandbox.tsdb import Tsdb, to_millis

MAX_POINTS = 11_000

# What the time of a request may be, so that its milliseconds fit into 64 bits (years -290,000 to 290,000).
_MAX_SECONDS = 9.2e15 / 1000

Parameters = dict[str, list[str]]
Answer = Callable[[Tsdb, Clock, Parameters], bytes]


def prometheus_app(tsdb: Tsdb, clock: Clock) -> Starlette:
    """The API as an application; ``clock`` says what "now" is for a query without a time."""

    def route(path: str, answer: Answer, methods: list[str]) -> Route:
        return Route(path, _endpoint(tsdb, clock, answer), methods=methods)

    both = ["GET", "POST"]
    return Starlette(
        routes=[
            route("/api/v1/query", _query, both),
            route("/api/v1/query_range", _query_range, both),
            route("/api/v1/labels", _label_names, both),
            route("/api/v1/label/{name}/values", _label_values, ["GET"]),
            route("/api/v1/series", _series, both),
            route("/api/v1/metadata", lambda *_: b"{}", ["GET"]),
            route("/api/v1/status/buildinfo", lambda *_: _BUILD, ["GET"]),
            Route("/-/ready", _ready),
            Route("/-/healthy", _healthy),
        ]
    )


# Clients look at the version to learn what the server can do.
_BUILD = msgspec.json.encode({"version": "2.42.0", "revision": "sandbox", "branch": "", "buildUser": "", "buildDate": "", "goVersion": ""})


async def _ready(_: Request) -> Response:
    return PlainTextResponse("Prometheus Server is Ready.\n")


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("Prometheus Server is Healthy.\n")


def _endpoint(tsdb: Tsdb, clock: Clock, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        parameters = await _parameters(request)
        status, body = await run_in_threadpool(_answered, tsdb, clock, answer, parameters)
        return Response(body, status, media_type="application/json")

    return endpoint


def _answered(tsdb: Tsdb, clock: Clock, answer: Answer, parameters: Parameters) -> tuple[int, bytes]:
    try:
        return 200, success(answer(tsdb, clock, parameters))
    except BadQueryDataError as error:
        return 400, failure("bad_data", str(error))
    except (QueryFailedError, UnsupportedQueryError) as error:
        return 422, failure("execution", str(error))


async def _parameters(request: Request) -> Parameters:
    """Those of a form body come before those of the URL, as in Go's ``FormValue``; the path's ``name`` is among them."""
    pairs: list[tuple[str, str]] = []
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        pairs += parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    pairs += request.query_params.multi_items()
    parameters: Parameters = {"{name}": [request.path_params.get("name", "")]}
    for name, value in pairs:
        parameters.setdefault(name, []).append(value)
    return parameters


def _query(tsdb: Tsdb, clock: Clock, parameters: Parameters) -> bytes:
    time = _time(parameters, "time", clock.now(), "Invalid time value for 'time': ")
    _check_timeout(parameters)
    with _naming("query"):
        return instant_data(query_instant(tsdb, _one(parameters, "query"), time), to_millis(time))


def _query_range(tsdb: Tsdb, _: Clock, parameters: Parameters) -> bytes:
    start, end = _time(parameters, "start"), _time(parameters, "end")
    if end < start:
        raise BadQueryDataError('invalid parameter "end": end timestamp must not be before start time')
    step = _duration(parameters, "step")
    if to_millis(step) <= 0:
        raise BadQueryDataError(
            'invalid parameter "step": zero or negative query resolution step widths are not accepted. Try a positive integer'
        )
    if (end - start) // step > MAX_POINTS:
        raise BadQueryDataError(
            "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)"
        )
    _check_timeout(parameters)
    return range_data(*query_range(tsdb, _one(parameters, "query"), start, end, step))


def _label_names(tsdb: Tsdb, _: Clock, parameters: Parameters) -> bytes:
    found = _matched(tsdb, parameters)
    return msgspec.json.encode(sorted({name for labels in found for name, _ in labels}))


def _label_values(tsdb: Tsdb, _: Clock, parameters: Parameters) -> bytes:
    wanted = _one(parameters, "{name}")
    if not LABEL_NAME.fullmatch(wanted):
        raise BadQueryDataError(f'invalid label name: "{wanted}"')
    found = _matched(tsdb, parameters)
    return msgspec.json.encode(sorted({value for labels in found for name, value in labels if name == wanted}))


def _series(tsdb: Tsdb, _: Clock, parameters: Parameters) -> bytes:
    if not parameters.get("match[]"):
        raise BadQueryDataError("no match[] parameter provided")
    return msgspec.json.encode([dict(labels) for labels in sorted(_matched(tsdb, parameters))])


def _matched(tsdb: Tsdb, parameters: Parameters) -> set[Labels]:
    """The series that any of the ``match[]`` selects (all, without one) and that lived between ``start`` and ``end``."""
    start, end = _time(parameters, "start", -_MAX_SECONDS), _time(parameters, "end", _MAX_SECONDS)
    selections: list[list[Matcher]] = [_selector(text) for text in parameters.get("match[]", [])] or [[]]
    return {labels for matchers in selections for labels in tsdb.select_labels(matchers, start, end)}


def _selector(text: str) -> list[Matcher]:
    with _naming("match[]"):
        tree = parse(text)
        if not isinstance(tree, promql_parser.VectorSelector) or tree.offset is not None or tree.at is not None:
            raise BadQueryDataError(f"{text!r} is not a plain series selector")
        return selector_matchers(tree)


@contextmanager
def _naming(parameter: str) -> Iterator[None]:
    """Says in a BadQueryDataError which parameter it is about."""
    try:
        yield
    except BadQueryDataError as error:
        raise BadQueryDataError(f'invalid parameter "{parameter}": {error}') from error


def _one(parameters: Parameters, name: str) -> str:
    return parameters.get(name, [""])[0]


def _time(parameters: Parameters, name: str, default: float | None = None, complaint: str = "") -> float:
    """Seconds of a parameter that is a number or an RFC 3339 time; ``complaint`` begins the error."""
    text = _one(parameters, name)
    if not text and default is not None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = _rfc3339(text)
    if not abs(seconds) <= _MAX_SECONDS:
        raise BadQueryDataError(f'invalid parameter "{name}": {complaint}cannot parse "{text}" to a valid timestamp')
    return seconds


def _rfc3339(text: str) -> float:
    """Seconds, or NaN when the text is not a time with a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return math.nan if moment.tzinfo is None else moment.timestamp()


def _duration(parameters: Parameters, name: str) -> float:
    """Seconds of a parameter that is a number or a duration such as 5m."""
    text = _one(parameters, name)
    try:
        seconds = float(text)
    except ValueError:
        try:
            return float(promql_parser.parse_duration(text).total_seconds())
        except ValueError:
            seconds = math.nan
    if not abs(seconds) <= _MAX_SECONDS:
        raise BadQueryDataError(f'invalid parameter "{name}": cannot parse "{text}" to a valid duration')
    return seconds


def _check_timeout(parameters: Parameters) -> None:
    """Clients send it; a query here is bounded by its size and not by time."""
    if _one(parameters, "timeout"):
        _duration(parameters, "timeout")
