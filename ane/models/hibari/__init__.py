"""Speak English with hibari, a small model that predicts the spectra of harmonics and noise for a DSP vocoder."""
