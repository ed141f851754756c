"""The annotations by which a DaemonSet's pods are told apart by a label of their nodes: what is asked, what is found, what counts."""

import json

import msgspec
import pytest

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.names import ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL as BY_VALUE
from vpa_ippr.api.names import ANNOTATION_SPLIT_BY_NODE_LABEL as ASKED
from vpa_ippr.api.node_split import for_node, split_label, write_by_value
from vpa_ippr.api.vpa import ContainerRecommendation, PodRecommendation, RecommenderSelector, TargetRef, Vpa, VpaSpec, VpaStatus


def of(cpu, container="app"):
    amounts = {"cpu": cpu, "memory": "100Mi"}
    return ContainerRecommendation(container, amounts, amounts, amounts)


WRITTEN = write_by_value("pool", {"small": [of("100m")], "": [of("300m")]})


def a_vpa(asked="pool", written=WRITTEN, kind="DaemonSet", recommender="vpa-ippr-balanced"):
    annotations = {name: text for name, text in ((ASKED, asked), (BY_VALUE, written)) if text is not None}
    spec = VpaSpec(TargetRef(kind, "agent"), recommenders=[RecommenderSelector(recommender)] if recommender else [])
    status = VpaStatus(PodRecommendation([of("900m"), of("50m", "sidecar")]))
    return Vpa(ObjectMeta("agent", "shop", annotations=annotations), spec, status)


@pytest.mark.parametrize(
    "key", ["pool", "node.kubernetes.io/instance-type", "a", "A_b.c-9", f"{'x' * 63}", f"{'a' * 63}.example.com/{'x' * 63}"]
)
def test_label_keys(key):
    assert split_label(a_vpa(key)) == key


@pytest.mark.parametrize(
    "key", ["", "/pool", "pool/", "a/b/c", "-pool", "pool-", "po ol", "pool\n", "x" * 64, "Big.Prefix/x", f"{'a.' * 130}b/x", "a..b/x"]
)
def test_what_is_no_label_key_is_refused(key):
    with pytest.raises(ValidationError, match="is not a label key") as caught:
        split_label(a_vpa(key))
    assert caught.value.reason == "InvalidNodeLabel"


def test_only_daemonsets_can_be_split():
    with pytest.raises(ValidationError, match="only for a DaemonSet, not for a Deployment") as caught:
        split_label(a_vpa(kind="Deployment"))
    assert caught.value.reason == "SplitUnsupported"
    assert split_label(a_vpa(asked=None, kind="Deployment")) is None


@pytest.mark.parametrize(
    ("labels", "cpu"),
    [({"pool": "small"}, "100m"), ({"other": "small"}, "300m"), ({"pool": "new"}, "900m"), (None, "900m")],
    ids=["value", "without the label", "value of which nothing is known", "node of which nothing is known"],
)
def test_a_pod_gets_what_is_recommended_on_its_node(labels, cpu):
    found = for_node(a_vpa(), labels)
    assert found.recommendation_for("app").target["cpu"] == cpu
    assert found.recommendation_for("sidecar").target["cpu"] == "50m"
    assert msgspec.structs.replace(found, status=VpaStatus()) == msgspec.structs.replace(a_vpa(), status=VpaStatus())


@pytest.mark.parametrize(
    "vpa",
    [a_vpa(asked=None), a_vpa(written=None), a_vpa(asked="zone"), a_vpa(recommender="default")],
    ids=["not asked", "nothing found yet", "another label is asked now", "another recommender's"],
)
def test_otherwise_the_status_counts(vpa):
    assert for_node(vpa, {"pool": "small"}) is vpa


@pytest.mark.parametrize("recommender", ["vpa-ippr", None], ids=["by name", "by default"])
def test_it_counts_for_every_way_of_naming_us(recommender):
    assert for_node(a_vpa(recommender=recommender), {"pool": "small"}).recommendation_for("app").target["cpu"] == "100m"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", WRITTEN.replace("/v1", "/v2"), WRITTEN.replace('"100m"', '"much"'), WRITTEN.replace('"values"', '"value"')],
    ids=["cut off", "no object", "another schema", "no quantity", "no values"],
)
def test_what_is_damaged_is_told(text):
    with pytest.raises(ValidationError, match=BY_VALUE) as caught:
        for_node(a_vpa(written=text), {"pool": "small"})
    assert caught.value.reason == "NodeRecommendationsInvalid"


def test_the_document():
    document = json.loads(WRITTEN)
    assert (document["schema"], document["label"]) == ("vpa-ippr/node-recommendations/v1", "pool")
    assert list(document["values"]) == ["", "small"]
    (entry,) = document["values"]["small"]
    assert set(entry) == {"containerName", "target", "lowerBound", "upperBound"}
