"""Whisper: recorded speech to text (Radford et al. 2022, arXiv 2212.04356)."""
