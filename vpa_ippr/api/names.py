"""Names that other programs rely on: groups, labels, annotations, condition types. Nothing else spells them out."""

from __future__ import annotations

import hashlib

VPA_GROUP = "autoscaling.k8s.io"
VPA_VERSION = "v1"
VPA_API_VERSION = f"{VPA_GROUP}/{VPA_VERSION}"
OWN_GROUP = "vpa-ippr.io"
SHRINK_VERSION = "v1alpha1"
SHRINK_API_VERSION = f"{OWN_GROUP}/{SHRINK_VERSION}"
NODE_MEMORY_VERSION = "v1alpha1"
NODE_MEMORY_API_VERSION = f"{OWN_GROUP}/{NODE_MEMORY_VERSION}"

RECOMMENDER_NAME = "vpa-ippr"
FIELD_MANAGER = "vpa-ippr"

ANNOTATION_EXPLANATION = f"{OWN_GROUP}/explanation"
ANNOTATION_SPLIT_BY_NODE_LABEL = f"{OWN_GROUP}/split-by-node-label"
ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL = f"{OWN_GROUP}/recommendations-by-node-label"
ANNOTATION_NODE_LABEL_VALUE = f"{OWN_GROUP}/node-label-value"
ANNOTATION_RESIZE_LEDGER = f"{OWN_GROUP}/resize-ledger"
ANNOTATION_ROLLOUT = f"{OWN_GROUP}/rollout"
ANNOTATION_ROLLOUT_GUARD = f"{OWN_GROUP}/rollout-guard"
ANNOTATION_PREVIOUS_RESOURCES = f"{OWN_GROUP}/previous-resources"
ANNOTATION_SHRINK_POLICY = f"{OWN_GROUP}/shrink-policy"
ANNOTATION_LIMIT_POLICY = f"{OWN_GROUP}/limit-policy"
ANNOTATION_PAUSE = f"{OWN_GROUP}/pause"
ANNOTATION_MAINTENANCE_WINDOWS = f"{OWN_GROUP}/maintenance-windows"
ANNOTATION_WITH_HPA = f"{OWN_GROUP}/with-hpa"
LABEL_POD_UID = f"{OWN_GROUP}/pod-uid"
LABEL_NODE = f"{OWN_GROUP}/node"

CONDITION_RECOMMENDATION_PROVIDED = "RecommendationProvided"
CONDITION_LOW_CONFIDENCE = "LowConfidence"
CONDITION_NO_PODS_MATCHED = "NoPodsMatched"
CONDITION_NO_DATA = "NoData"
CONDITION_CONFIG_UNSUPPORTED = "ConfigUnsupported"
CONDITION_MEMORY_LEAK = "MemoryLeak"
CONDITION_OOM_FUSE = "OomFuse"
CONDITION_DEGRADED = "Degraded"

POD_RESIZE_PENDING = "PodResizePending"
POD_RESIZE_IN_PROGRESS = "PodResizeInProgress"
ANNOTATION_MIRROR_POD = "kubernetes.io/config.mirror"
# Upstream's: written by an admission controller for each container whose CPU it boosts, followed by the container's name.
ANNOTATION_CPU_BOOST_PREFIX = "vpaCpuStartupBoost/"

_MAX_LABEL_VALUE = 63
_HASH_LENGTH = 10


def node_label(node_name: str) -> str:
    """The value of ``LABEL_NODE`` for a node: its name, or the beginning of it and a hash.

    Node names may have 253 characters, label values 63; names that differ only near their end must stay different.
    """
    if len(node_name) <= _MAX_LABEL_VALUE:
        return node_name
    return f"{node_name[: _MAX_LABEL_VALUE - _HASH_LENGTH - 1].rstrip('-.')}-{short_hash(node_name)}"


def short_hash(text: str) -> str:
    """What tells names apart that would be too long, or hold characters that a name must not, with the text itself in them."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
