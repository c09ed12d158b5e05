"""Core ML packages: graphs, compression, merging of functions."""
