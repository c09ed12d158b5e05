"""Run the decoder and the denoiser on MLX, Apple's array library (MIT), and the other networks on torch.

MLX runs on the GPU of Apple silicon, and on the CPU of Linux and of hosted runners, so the same code is tested without
a Mac. ``gpt.py`` and ``diffusion.py`` lay out the networks a third time, from the official parameter names.
"""
