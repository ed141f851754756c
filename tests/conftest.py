"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# One slow moment on a busy machine is no defect of the code under test.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
