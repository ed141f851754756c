"""One small global model for all tests of forecasters."""

import pytest

from support.usage_grids import SMALL_TRAINING, daily, with_gaps
from vpa_ippr.forecast.training import train


@pytest.fixture(scope="session")
def training_grids():
    return [daily(12, 9, seed=1), with_gaps(daily(6, 9, seed=2, noise=0.3))]


@pytest.fixture(scope="session")
def model(training_grids):
    return train(training_grids, SMALL_TRAINING)
