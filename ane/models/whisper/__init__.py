"""Turn recorded speech into text with Whisper (Radford et al. 2022, arXiv 2212.04356)."""
