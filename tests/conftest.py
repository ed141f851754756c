"""Settings of all tests."""

import os

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
