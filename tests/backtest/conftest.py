"""A global model that is small and quick, in place of the one that came with the program."""

import pytest

from support.usage_grids import SMALL_TRAINING, daily
from vpa_ippr.forecast.boosting import GRADIENT_BOOSTING, BoostingForecaster
from vpa_ippr.forecast.training import train


@pytest.fixture(scope="session")
def stand_ins():
    """For a scene: what its profiles ask instead of their model."""
    return {GRADIENT_BOOSTING: BoostingForecaster(train([daily(10, 9, seed=1)], SMALL_TRAINING))}
