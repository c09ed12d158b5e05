"""Check packages: compare them with the PyTorch networks, find unsuitable operations, and estimate their cost."""
