"""Measure the backends of this machine: the core of `ane bench` and of ``benchmarks``.

Read in this order: ``records`` (a measured value, its table and document), ``measure`` (the measured calls, and how
they are measured), ``worker`` and ``sessions`` (the same in separate processes).

coremltools' MLModelBenchmarker is not used, for three reasons. It compiles a package at each load, where `ane say`
opens a cached compiled model. It makes a new state for each prediction. And it does not measure an operation's time,
but multiplies the prediction's time by the share that the compute plan estimates.
"""
