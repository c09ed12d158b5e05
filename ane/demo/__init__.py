"""The embedded bundles, for users without downloaded weights, tests and benchmarks."""
