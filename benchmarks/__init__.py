"""Measure speed, memory and quality on this machine. These are not tests.

``python -m benchmarks --help`` lists the benchmarks. Each prints a table and writes JSON to ``benchmarks/results/``.
"""
