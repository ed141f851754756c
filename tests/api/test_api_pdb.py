import msgspec
import pytest

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.pdb import LabelSelector, PodDisruptionBudget, covering
from vpa_ippr.api.pod import Pod


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ({}, {}, True),
        ({"matchLabels": {"app": "web"}}, {"app": "web", "tier": "x"}, True),
        ({"matchLabels": {"app": "web"}}, {"app": "db"}, False),
        ({"matchLabels": {"app": "web", "tier": "x"}}, {"app": "web"}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}, {"app": "db"}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, {}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, {}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, {"app": "web"}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"app": ""}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {"app": "web"}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Newer"}]}, {}, True),
    ],
)
def test_a_label_selector_matches_as_the_api_server_does(selector, labels, matches):
    assert msgspec.convert(selector, LabelSelector).matches(labels) is matches


@pytest.mark.parametrize(
    ("spec", "covered"), [({}, False), ({"selector": {}}, True), ({"selector": {"matchLabels": {"app": "db"}}}, False)]
)
def test_a_budget_without_a_selector_covers_nothing_and_an_empty_one_everything(spec, covered):
    pod = Pod(ObjectMeta(name="web-0", namespace="shop", labels={"app": "web"}))
    ours, foreign = (
        msgspec.convert({"metadata": {"name": "b", "namespace": namespace}, "spec": spec}, PodDisruptionBudget)
        for namespace in ("shop", "bank")
    )
    assert covering([ours, foreign], pod) == ((ours,) if covered else ())


def test_a_budget_is_read_from_its_json():
    text = b"""{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "n", "generation": 2},
      "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
      "status": {"disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3, "observedGeneration": 1}}"""
    pdb = msgspec.json.decode(text, type=PodDisruptionBudget)
    assert (pdb.status.disruptions_allowed, pdb.is_stale, pdb.lets_unready_go) == (1, True, True)
