"""Settings are checked before the first request, and waits follow the rules of the road."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import UsageError
from vpa_ippr.metrics.retry import CAP_SECONDS, delay_seconds, parse_retry_after
from vpa_ippr.metrics.settings import PrometheusSettings

URL = "http://prometheus:9090"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "prometheus:9090"}, "expected http://"),
        ({"url": ""}, "expected http://"),
        ({"url": "http://"}, "expected http://"),
        ({"url": "http://host:port"}, "expected http://"),
        ({"url": "http://me:secret@host"}, "not in the URL"),
        ({"url": "http://host/?a=b"}, "no query"),
        ({"bearer_token": "a", "username": "b", "password": "c"}, "one of"),
        ({"username": "b"}, "go together"),
        ({"client_key_file": Path("key.pem")}, "needs its certificate"),
        ({"ca_file": Path("/nowhere/ca.pem")}, "CA file /nowhere/ca.pem does not exist"),
        ({"extra_matchers": ("job=kubelet",)}, "matcher 'job=kubelet'"),
        ({"cluster": "a", "cluster_label": "no-label"}, "matcher"),
        ({"max_points": 20_000}, "at most"),
        ({"max_retries": -1}, "0 or more"),
        ({"concurrency": 0}, "concurrency must be above 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be above 0"),
        ({"scrape_interval_seconds": 0}, "scrape_interval_seconds"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UsageError, match=message) as caught:
        PrometheusSettings(**{"url": URL, **settings})
    assert "secret" not in str(caught.value)


def test_secrets_do_not_show():
    shown = repr(PrometheusSettings(url=URL, username="me", password="hush", headers={"Authorization": "hush"}))

    assert "hush" not in shown
    assert "hush" not in repr(PrometheusSettings(url=URL, bearer_token="hush"))


def test_the_cluster_becomes_a_quoted_matcher_before_the_others():
    settings = PrometheusSettings(url=f"{URL}/prefix/", cluster='ea"st', extra_matchers=('a="b"',))

    assert settings.matchers == ('cluster="ea\\"st"', 'a="b"')
    assert settings.base_url == f"{URL}/prefix"


@given(st.integers(0, 50), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 100)))
def test_a_wait_grows_within_bounds_and_never_undercuts_the_server(attempt, jitter, retry_after):
    delay = delay_seconds(attempt, jitter, retry_after)

    assert (retry_after or 0) <= delay <= (retry_after or 0) + CAP_SECONDS


def test_waits_double():
    assert [delay_seconds(attempt, 1.0) for attempt in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7),
        ("-3", 0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:17:40 GMT", 60),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
    ],
)
def test_retry_after(header, seconds):
    assert parse_retry_after(header, now=1000.0) == seconds
