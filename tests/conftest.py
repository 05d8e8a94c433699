"""Settings for all tests."""

from hypothesis import settings

# Hypothesis has a limit on the time of an example. A busy machine exceeds it.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
