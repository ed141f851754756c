"""Names that other programs rely on: groups, labels, annotations, condition types. Nothing else spells them out."""

from __future__ import annotations

VPA_GROUP = "autoscaling.k8s.io"
VPA_VERSION = "v1"
VPA_API_VERSION = f"{VPA_GROUP}/{VPA_VERSION}"
OWN_GROUP = "vpa-ippr.io"
SHRINK_VERSION = "v1alpha1"
SHRINK_API_VERSION = f"{OWN_GROUP}/{SHRINK_VERSION}"

RECOMMENDER_NAME = "vpa-ippr"
FIELD_MANAGER = "vpa-ippr"

ANNOTATION_EXPLANATION = f"{OWN_GROUP}/explanation"
ANNOTATION_RESIZE_LEDGER = f"{OWN_GROUP}/resize-ledger"
ANNOTATION_PREVIOUS_RESOURCES = f"{OWN_GROUP}/previous-resources"
LABEL_POD_UID = f"{OWN_GROUP}/pod-uid"
LABEL_NODE = f"{OWN_GROUP}/node"

CONDITION_RECOMMENDATION_PROVIDED = "RecommendationProvided"
CONDITION_LOW_CONFIDENCE = "LowConfidence"
CONDITION_NO_PODS_MATCHED = "NoPodsMatched"
CONDITION_NO_DATA = "NoData"
CONDITION_CONFIG_UNSUPPORTED = "ConfigUnsupported"

POD_RESIZE_PENDING = "PodResizePending"
POD_RESIZE_IN_PROGRESS = "PodResizeInProgress"
ANNOTATION_MIRROR_POD = "kubernetes.io/config.mirror"
