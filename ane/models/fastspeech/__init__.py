"""FastSpeech as in NVIDIA's example: text to mel in one parallel pass, then sound. Read ``synthesizer`` first."""
