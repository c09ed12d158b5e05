"""Measuring the engines of this machine, and choosing the fastest settings: what `ane bench` does.

Read in this order: ``figures`` (what is measured), ``measure`` with ``uses`` and ``packages`` (how), ``worker`` (in
processes of their own), ``choosing``; then ``machine``, ``energy`` and ``report``.

coremltools' MLModelBenchmarker is not used. It takes packages and compiles one at each load, where `ane say` opens a
compiled model that is kept; it makes a new state for each prediction; and its time of an operation is not measured, but
the prediction's times the share that the compute plan estimates, which `ane bench --placement` and `ane plan` show as
what it is.
"""
