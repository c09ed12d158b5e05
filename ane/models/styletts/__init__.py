"""Share code between KittenTTS and Kokoro. Both run one ONNX graph of a StyleTTS 2 model."""
