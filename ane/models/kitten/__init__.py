"""KittenTTS: text and a voice of a table to phonemes, and one ONNX graph from phonemes to 24 kHz sound."""
