"""Core ML on a Mac: ``runtime`` loads and calls functions of packages, ``compiled`` caches compiled models."""
