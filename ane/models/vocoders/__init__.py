"""Vocoders that several model families share: mel spectrograms to sound."""
