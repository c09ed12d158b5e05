"""Run a model on converted packages: choose packages and functions, and store the decoder's kv-cache."""
