"""Run the PyTorch networks of a model on the CPU, on CUDA or on MPS."""
