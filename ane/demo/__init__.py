"""The embedded bundle, for users without downloaded weights, tests and benchmarks."""
