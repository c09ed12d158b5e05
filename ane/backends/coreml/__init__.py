"""Run packages on Core ML on a Mac: ``runtime`` loads and calls functions, ``compiled`` caches compiled models."""
