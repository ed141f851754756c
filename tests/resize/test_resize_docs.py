"""The operator's page names every reason that the updater gives, and every annotation is explained."""

from pathlib import Path

import pytest

from vpa_ippr.api import names
from vpa_ippr.resize.reasons import (
    AbortReason,
    DueReason,
    EventReason,
    HarmReason,
    KeepReason,
    NotDueReason,
    OutcomeCode,
    RefusalReason,
    ReliefReason,
    RevertReason,
)

DOCS = Path(__file__).parents[2] / "docs"
REASONS = (
    AbortReason,
    DueReason,
    EventReason,
    HarmReason,
    KeepReason,
    NotDueReason,
    OutcomeCode,
    RefusalReason,
    ReliefReason,
    RevertReason,
)
OURS = {name: value for name, value in vars(names).items() if name.startswith("ANNOTATION_") and value.startswith(names.OWN_GROUP)}


@pytest.mark.parametrize("kind", REASONS, ids=lambda kind: kind.__name__)
def test_every_reason_is_in_the_page_on_resizing(kind):
    page = (DOCS / "resizing.md").read_text()
    assert [reason for reason in kind if f"`{reason}`" not in page] == []


@pytest.mark.parametrize("name", OURS)
def test_every_annotation_is_in_the_page_on_annotations(name):
    assert f"`{OURS[name]}`" in (DOCS / "annotations.md").read_text()
