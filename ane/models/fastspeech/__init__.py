"""Speak with FastSpeech, as in NVIDIA's example: make a mel from text in one pass, then sound with a vocoder."""
