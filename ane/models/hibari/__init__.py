"""hibari: English phonemes to 24 kHz speech, by a harmonic source, shaped noise and one inverse STFT."""
