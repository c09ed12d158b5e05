"""Prove that a package is right: parity with the PyTorch reference, lint, cost."""
