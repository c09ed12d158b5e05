"""Tortoise: text and a reference voice to mel codes, to a spectrogram, to 24 kHz sound."""
