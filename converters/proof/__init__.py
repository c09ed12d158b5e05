"""Evidence about a package: parity with the PyTorch reference, lint, cost."""
