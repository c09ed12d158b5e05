"""Test inputs for FastSpeech's ONNX graphs: the probes of its packages, at other lengths than were traced."""

from converters.fastspeech.probes import PROBES

__all__ = ("LENGTHS", "PROBES")

# kind → the lengths it is probed with; the inputs are a little shorter
LENGTHS = {"text": {"symbols": 40}, "mel": {"frames": 90, "symbols": 30}, "vocoder": {"frames": 30},
           "waveglow": {"frames": 30}}
