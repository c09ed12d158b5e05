"""Measure speed, memory, quality and exactness on this machine.

``python -m benchmarks --help`` lists the benchmarks. A benchmark prints a table, and writes JSON to
``benchmarks/results/``.
"""
