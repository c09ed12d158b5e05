"""Hold the embedded bundles, for users without downloaded weights, and for tests and benchmarks."""
