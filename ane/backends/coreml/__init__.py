"""Run converted packages on Core ML on a Mac.

``runtime`` loads and calls the functions of a package, and ``compiled`` caches compiled models.
"""
