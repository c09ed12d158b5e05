"""The small bundle that ships with the package, so that a new user, a test and a benchmark have a model at once."""
