"""The fake Mac, for all tests of Core ML."""

from tests.backends.coreml.mac_fixtures import (  # noqa: F401
    api,
    forked_trials,
    mac,
    package,
    packages,
    unguarded_mac,
)
