"""Speak English with KittenTTS, whose one ONNX graph makes 24 kHz sound from phonemes and a style vector."""
