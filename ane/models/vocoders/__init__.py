"""Vocoders, which turn mel spectrograms or other frames into sound, and which several model families share."""
