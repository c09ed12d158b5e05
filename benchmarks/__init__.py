"""Measurements of speed, memory and quality on the machine they run on. They are not tests.

``python -m benchmarks --help`` lists them. Each prints a table and writes JSON to ``benchmarks/results/``.
"""
