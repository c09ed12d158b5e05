"""Convert networks to Core ML packages: graphs, options, compression, merging of functions."""
