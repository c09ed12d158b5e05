"""Convert networks to Core ML packages: build graphs, compress weights, and merge functions into one package."""
