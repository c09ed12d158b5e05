"""Run the decoder and the denoiser on MLX, Apple's array library (MIT), and the other networks on torch.

MLX runs on the GPU of Apple silicon, and also on the CPU of Linux machines and hosted runners, where tests run the same
code. ``gpt.py`` and ``diffusion.py`` define the two networks for MLX, with the official names of the parameters. Torch
and Core ML have definitions of these networks too.
"""
