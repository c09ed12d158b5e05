"""Share code between KittenTTS and Kokoro, which run one ONNX graph of StyleTTS 2 from phonemes and style to sound."""
