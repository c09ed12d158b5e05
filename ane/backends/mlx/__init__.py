"""Run the decoder and the denoiser on MLX, Apple's array library (MIT), and the other networks on torch.

On Apple silicon, MLX runs on the GPU. On Linux it runs on the CPU, so tests there run the same code. ``gpt.py`` and
``diffusion.py`` define the two networks for MLX. They read the parameters of the PyTorch networks, by the same names.
"""
