"""KittenTTS: text and a voice of a table to phonemes, and one ONNX graph from phonemes to 24 kHz sound.

>>> from ane.models.kitten import open_kitten
>>> open_kitten("kitten-tts-nano-0.8-fp32").speak("Hello.", voice="Bella").save("hello.wav")
"""

from typing import Any

__all__ = ["KittenSynthesizer", "open_kitten"]


def __getattr__(name: str) -> Any:
    """Imports the synthesizer when it is used: settings and bundles need no libraries for sound."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from ane.models.kitten import synthesizer

    return getattr(synthesizer, name)
