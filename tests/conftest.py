"""Settings of all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# One slow moment on a busy machine is no defect of the code under test. In CI the same examples come in every run: whether a change is
# red must depend on the change; people's runs go on looking for new ones.
settings.register_profile(
    "shared",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
)
settings.load_profile("shared")

# Folders whose tests compute for seconds: `make test-fast` leaves them out.
_SLOW_FOLDERS = frozenset({"backtest", "contract", "families", "forecast"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a person does not wait for at each change."""
    for item in items:
        if item.path.parent.name in _SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)
