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

# Folders and files whose tests compute for seconds, mostly because they train or load a model: `make test-fast` leaves them out.
_SLOW_FOLDERS = frozenset({"backtest", "contract", "e2e", "families", "forecast"})
_SLOW_FILES = frozenset(
    {
        "test_cli_backtest.py",
        "test_cli_ensemble.py",
        "test_cli_evidence.py",
        "test_cli_recommender_jobs.py",
        "test_cli_train.py",
        "test_recommend_cohorts.py",
        "test_recommend_ensemble.py",
        "test_recommend_evidence.py",
        "test_recommend_recordings.py",
        "test_recommend_retraining.py",
        "test_resize_safety.py",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a person does not wait for at each change."""
    for item in items:
        if item.path.parent.name in _SLOW_FOLDERS or item.path.name in _SLOW_FILES:
            item.add_marker(pytest.mark.slow)
