"""Speak with Tortoise, which turns text and a voice into mel codes, then into a mel spectrogram, then into sound."""
