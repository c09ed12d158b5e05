"""Provide the fake Mac to all tests of Core ML."""

from tests.backends.coreml.mac_fixtures import api, forked_trials, mac, package, packages, unguarded_mac  # noqa: F401
