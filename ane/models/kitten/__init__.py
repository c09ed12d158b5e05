"""KittenTTS: text and a voice of a table to phonemes, and one ONNX graph from phonemes to 24 kHz sound.

>>> from ane.models.kitten import open_kitten
>>> open_kitten("kitten-tts-nano-0.8-fp32").speak("Hello.", voice="Bella").save("hello.wav")
"""

from ane.models.kitten.synthesizer import KittenSynthesizer, open_kitten

__all__ = ["KittenSynthesizer", "open_kitten"]
