"""Measuring the backends of this machine: the core of `ane bench` and of ``benchmarks``.

Read in this order: ``records`` (a measured value, its table and document), ``measure`` (what is called, and how
it is measured), ``worker`` and ``sessions`` (in processes of their own).

coremltools' MLModelBenchmarker is not used: it compiles a package at each load, where `ane say` opens a cached
compiled model; it makes a new state for each prediction; and its time of an operation is not measured, but the
prediction's time multiplied by the share that the compute plan estimates.
"""
