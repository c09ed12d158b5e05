"""The engine on MLX, Apple's array library (MIT): the decoder and the denoiser run on it, the other networks on torch.

MLX runs on the GPU of Apple silicon, and on the CPU of Linux and of hosted runners, so the same code is tested without
a Mac. Networks are laid out here a third time (``gpt.py``, ``diffusion.py``), from the official parameter names.
"""
