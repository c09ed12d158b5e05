"""Speak with KittenTTS: phonemes and a row of a voice table go through one ONNX graph, which makes 24 kHz sound."""
