"""Speak with FastSpeech as in NVIDIA's example: text to mel in one pass, then sound. Start at ``synthesizer``."""
