"""Core ML packages as Core AI assets, for Apple's tools. ``ane.backends.coreai`` writes those that it runs itself."""
