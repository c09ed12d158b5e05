"""What KittenTTS and Kokoro have in common: one ONNX graph of StyleTTS 2, from phonemes and a style to 24 kHz sound."""
