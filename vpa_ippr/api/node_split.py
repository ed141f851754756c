"""A VPA whose DaemonSet runs on unlike nodes: which node label tells them apart, and what is recommended for each of its values.

The status holds the largest of these, so whoever knows nothing of the annotations is safe with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.names import ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL, ANNOTATION_SPLIT_BY_NODE_LABEL, RECOMMENDER_NAME
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.vpa import ContainerRecommendation, PodRecommendation, Vpa

SCHEMA: Final = "vpa-ippr/node-recommendations/v1"
_SPLIT_KIND: Final = "DaemonSet"
# ``IsQualifiedName`` of k8s.io/apimachinery: an optional DNS subdomain, a slash, and a name.
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_PREFIX: Final = 253


class _Document(msgspec.Struct, frozen=True):
    schema: str
    label: str
    values: dict[str, list[ContainerRecommendation]]


def split_label(vpa: Vpa) -> str | None:
    """The key of the node label by which the VPA wants its pods told apart; None when it does not.

    Raises:
        ValidationError: it is no label key (reason ``InvalidNodeLabel``), or the target is no DaemonSet (``SplitUnsupported``).
    """
    label = vpa.metadata.annotations.get(ANNOTATION_SPLIT_BY_NODE_LABEL)
    if label is None:
        return None
    where = f"annotation {ANNOTATION_SPLIT_BY_NODE_LABEL}"
    if not _is_label_key(label):
        raise ValidationError(f"{where}: {label!r} is not a label key, such as topology.kubernetes.io/zone", reason="InvalidNodeLabel")
    target = vpa.spec.target_ref
    if target is not None and target.kind != _SPLIT_KIND:
        raise ValidationError(f"{where}: only for a {_SPLIT_KIND}, not for a {target.kind}; remove it", reason="SplitUnsupported")
    return label


def write_by_value(label: str, values: Mapping[str, Sequence[ContainerRecommendation]]) -> str:
    """The annotation that holds what is recommended for each value of the label; nodes without it have the empty value."""
    kept = {value: [msgspec.structs.replace(one, uncapped_target={}) for one in found] for value, found in sorted(values.items())}
    return msgspec.json.encode(_Document(SCHEMA, label, kept)).decode()


def for_node(vpa: Vpa, labels: Mapping[str, str] | None) -> Vpa:
    """The VPA as it is meant for pods on a node with these labels; as it is where nothing is known of the node or of its value.

    Raises:
        ValidationError: one of the annotations is damaged; the VPA's status is to be taken as it is.
    """
    label, text = split_label(vpa), vpa.metadata.annotations.get(ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL)
    status = vpa.status.recommendation
    # Another recommender writes the status alone: what is left of ours would be out of date for good.
    if label is None or text is None or labels is None or status is None or not _is_ours(vpa):
        return vpa
    found = _read(text)
    if found.label != label:
        return vpa
    own = {one.container_name: one for one in found.values.get(labels.get(label, ""), [])}
    recommended = [own.get(one.container_name, one) for one in status.container_recommendations]
    return msgspec.structs.replace(vpa, status=msgspec.structs.replace(vpa.status, recommendation=PodRecommendation(recommended)))


def _read(text: str) -> _Document:
    where = f"annotation {ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL}"
    try:
        found = msgspec.json.decode(text, type=_Document)
        for value, recommendations in found.values.items():
            for one in recommendations:
                for amounts in (one.target, one.lower_bound, one.upper_bound):
                    parse_amounts(amounts, f"value {value!r} container {one.container_name}")
    except (msgspec.DecodeError, QuantityError) as error:
        raise ValidationError(f"{where}: {error}", reason="NodeRecommendationsInvalid") from error
    if found.schema != SCHEMA:
        raise ValidationError(f"{where}: schema {found.schema!r} is not {SCHEMA!r}", reason="NodeRecommendationsInvalid")
    return found


def _is_ours(vpa: Vpa) -> bool:
    names = [one.name for one in vpa.spec.recommenders]
    return not names or names[0] == RECOMMENDER_NAME or names[0].startswith(f"{RECOMMENDER_NAME}-")


def _is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    sound = not slash or (len(prefix) <= _MAX_PREFIX and _DNS_SUBDOMAIN.fullmatch(prefix) is not None)
    return sound and _LABEL_NAME.fullmatch(name) is not None
