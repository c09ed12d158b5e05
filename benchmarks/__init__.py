"""Measurements on the machine they run on: a table to read, JSON to keep, a plot to look at. None of them is a test.

Run one as a module, ``python -m benchmarks.decode --help``, or all: ``python -m benchmarks --help``.
"""
