"""The reference networks on PyTorch: CPU, CUDA, MPS."""
