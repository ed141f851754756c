"""Query texts: what they select, and that nothing a name holds can change their meaning."""

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import EvidenceKind
from vpa_ippr.metrics import queries
from vpa_ippr.metrics.queries import Scope

SCOPE = Scope("shop", ('cluster="east"',))
CONTAINERS = 'namespace="shop",container!="",container!="POD",cluster="east"'
PODS = ("a.b", "c")
OF_PODS = 'namespace="shop",pod=~"a\\\\.b|c"'


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            queries.cpu(SCOPE, 240),
            f"max by (namespace,pod,container) (rate(container_cpu_usage_seconds_total{{{CONTAINERS}}}[240s]))",
        ),
        (
            queries.memory(SCOPE, 300),
            f"max by (namespace,pod,container) (max_over_time(container_memory_working_set_bytes{{{CONTAINERS}}}[299999ms]))",
        ),
        (
            queries.pod_owners(SCOPE, 3600),
            (
                "max by (pod,owner_kind,owner_name) (last_over_time(kube_pod_owner"
                '{namespace="shop",owner_is_controller!="false",cluster="east"}[3600s]))'
            ),
        ),
        (
            queries.evidence(SCOPE, EvidenceKind.CPU_THROTTLED, 60, 240),
            (
                f"max by (namespace,pod,container) (rate(container_cpu_cfs_throttled_periods_total{{{CONTAINERS}}}[240s])"
                f" / (rate(container_cpu_cfs_periods_total{{{CONTAINERS}}}[240s]) > 0))"
            ),
        ),
        (
            queries.evidence(SCOPE, EvidenceKind.MEMORY_PRESSURE, 60, 240),
            f"max by (namespace,pod,container) (rate(container_pressure_memory_waiting_seconds_total{{{CONTAINERS}}}[240s]))",
        ),
        (
            queries.evidence(SCOPE, EvidenceKind.RSS, 60, 240),
            f"max by (namespace,pod,container) (max_over_time(container_memory_rss{{{CONTAINERS}}}[59999ms]))",
        ),
        (
            queries.evidence(SCOPE, EvidenceKind.ACTIVE_FILE, 60, 240),
            f"min by (namespace,pod,container) (min_over_time(container_memory_total_active_file_bytes{{{CONTAINERS}}}[59999ms]))",
        ),
        (
            queries.memory_limits(SCOPE, PODS),
            f'max by (namespace,pod,container) (kube_pod_container_resource_limits{{{OF_PODS},resource="memory",cluster="east"}})',
        ),
    ],
    ids=["cpu", "memory", "owners", "throttled", "pressure", "rss", "active-file", "limits"],
)
def test_query_text(query, expected):
    assert query == expected


@pytest.mark.parametrize(
    "query",
    [
        queries.cpu(SCOPE, 60.5),
        queries.memory(SCOPE, 1),
        queries.instances(SCOPE),
        queries.scrape_counts(SCOPE, 3600),
        queries.counter_resets(SCOPE, 3600),
        queries.pod_owners(SCOPE, 3600),
        queries.replicaset_owners(SCOPE, 3600),
        queries.job_owners(SCOPE, 3600),
        queries.oom_killed(SCOPE, 3600),
        queries.oom_reason(SCOPE, PODS),
        queries.restarts(SCOPE, PODS),
        queries.termination_times(SCOPE, PODS),
        queries.memory_requests(SCOPE, PODS),
        *(queries.evidence(SCOPE, kind, 60, 240) for kind in EvidenceKind),
        queries.container_selector(SCOPE.matchers),
    ],
    ids=lambda query: query[:60],
)
def test_every_query_parses_keeps_to_the_cluster_and_never_sums(query):
    promql_parser.parse(query)
    assert 'cluster="east"' in query
    assert "sum" not in query


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_no_namespace_can_break_out_of_its_quotes(name):
    parsed = promql_parser.parse(Scope(name).select("up"))

    assert isinstance(parsed, promql_parser.VectorSelector)
    assert [(matcher.name, matcher.value) for matcher in parsed.matchers.matchers] == [("namespace", name)]


@given(st.lists(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True), min_size=1))
def test_pod_names_are_matched_literally(pods):
    (matcher,) = promql_parser.parse(f"up{{{queries.one_of('pod', pods)}}}").matchers.matchers

    assert matcher.value.replace("\\", "") == "|".join(pods)
    assert matcher.value.count("\\.") == sum(pod.count(".") for pod in pods)


@pytest.mark.parametrize("matcher", ['job="kubelet"', 'a="b",c!~"d.*"', 'a=""'], ids=["one", "two", "empty"])
def test_a_matcher_is_taken_as_it_is(matcher):
    assert queries.check_matcher(matcher) == matcher


@pytest.mark.parametrize(
    "matcher",
    ["", "job", "job=kubelet", 'a="b"} or up{a="c"', 'a="b"}[5m', 'a="b"} offset 5m #', '__name__="other"', 'a="b" or c="d"', 'a=~"("'],
)
def test_anything_but_matchers_is_refused(matcher):
    with pytest.raises(UsageError, match="matcher"):
        queries.check_matcher(matcher)


@pytest.mark.parametrize(
    ("step", "scrape", "window"),
    [(300, 30, 300), (60, 30, 120), (60, 15, 60), (15, 60, 240)],
    ids=["step-rules", "four-scrapes", "both", "step-below-scrape"],
)
def test_rate_averages_over_the_step_and_at_least_four_scrapes(step, scrape, window):
    assert queries.rate_window_seconds(step, scrape) == window


@pytest.mark.parametrize(("seconds", "text"), [(300, "300s"), (0.001, "1ms"), (299.999, "299999ms"), (86400.0, "86400s")])
def test_duration(seconds, text):
    assert queries.duration(seconds) == text
