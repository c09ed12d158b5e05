"""Speak English with Kokoro: phonemes and a row of a voice table go through one ONNX graph, which makes sound."""
