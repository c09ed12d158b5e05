"""Measure how fast backends are on this machine, for `ane bench` and the folder ``benchmarks``.

Read the modules in this order: ``records`` (measured values, tables, JSON documents), ``measure`` (times calls in this
process), ``worker`` and ``sessions`` (time calls in separate processes).

We do not use MLModelBenchmarker from coremltools, for three reasons. Whenever it loads a package, it compiles the
package, whereas `ane say` opens a compiled model from the cache. It makes a new state for every prediction. And it does
not measure the time of an operation, but divides the prediction's time by the shares that the compute plan estimates.
"""
