"""The user's PromQL guard: read strictly, asked about one pod, and never a reason to go on when it cannot be asked."""

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import a_container, a_pod
from rollout_support import VPA, annotated

from vpa_ippr.api.errors import SourceError, ValidationError
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.names import ANNOTATION_ROLLOUT_GUARD
from vpa_ippr.api.pod import Pod
from vpa_ippr.resize.guard import ask_guard, guard_query, read_guard

GUARD = 'sum(rate(http_errors{namespace="$namespace", pod="$pod"}[5m])) > 0.01'
POD = a_pod(a_container(cpu="1"), name="web-0")


def guarded(text):
    return annotated(VPA, {ANNOTATION_ROLLOUT_GUARD: text})


class Answers:
    """Answers every query with the same, and remembers them."""

    def __init__(self, answer):
        self.answer, self.queries = answer, []

    def evaluate(self, query):
        self.queries.append(query)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_no_annotation_is_no_guard():
    assert read_guard(VPA) is None
    assert ask_guard(None, VPA, POD).problem == ""


def test_the_query_is_about_the_canary():
    source = Answers(0.5)
    assert ask_guard(source, guarded(GUARD), POD).value == 0.5
    assert source.queries == ['sum(rate(http_errors{namespace="shop", pod="web-0"}[5m])) > 0.01']


def test_without_a_canary_the_guard_is_only_looked_at():
    source = Answers(1.0)
    answer = ask_guard(source, guarded(GUARD), None)
    assert (answer.value, answer.problem, source.queries) == (None, "", [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("sum(", "annotation vpa-ippr.io/rollout-guard: ", id="no-promql"),
        pytest.param("up{pod=$pod}", "belong into the quotes", id="placeholder-outside-quotes"),
        pytest.param("", "no expression", id="empty"),
        pytest.param("1", "no instant vector", id="number"),
        pytest.param('"text"', "no instant vector", id="string"),
        pytest.param("up[5m]", "no instant vector", id="range"),
        pytest.param('up{a="' + "x" * 2048 + '"}', "more than the 2048", id="too-long"),
    ],
)
def test_what_is_no_guard_holds_the_rollout(text, says):
    with pytest.raises(ValidationError, match=says) as error:
        read_guard(guarded(text))
    assert error.value.reason == "InvalidGuard"
    answer = ask_guard(Answers(0.0), guarded(text), POD)
    assert answer.value is None
    assert ANNOTATION_ROLLOUT_GUARD in answer.problem


def test_a_guard_of_exactly_the_largest_size_is_read():
    text = 'up{a="' + "x" * (2048 - 8) + '"}'
    assert read_guard(guarded(text)) == text


def test_what_cannot_be_asked_is_a_problem_and_no_value():
    assert ask_guard(Answers(SourceError("down")), guarded(GUARD), POD) == ask_guard(Answers(SourceError("down")), guarded(GUARD), POD)
    assert ask_guard(Answers(SourceError("down")), guarded(GUARD), POD).problem == "down"
    assert "no Prometheus" in ask_guard(None, guarded(GUARD), POD).problem


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=12), st.sampled_from("\"'`"))
def test_a_name_never_becomes_more_than_a_label_value(name, quote):
    pod = Pod(ObjectMeta(name=name, namespace="shop"))
    try:
        query = guard_query(f"up{{pod={quote}$pod{quote}}}", pod)
    except ValidationError:
        return
    (matcher,) = promql_parser.parse(query).matchers.matchers
    assert (matcher.name, matcher.value) == ("pod", name)


def test_other_variables_are_left_as_they_are():
    assert guard_query('up{a="$pods", b="$pod"}', POD) == 'up{a="$pods", b="web-0"}'
