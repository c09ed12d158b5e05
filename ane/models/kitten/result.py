"""The result of synthesis with KittenTTS."""

from dataclasses import dataclass

from ane.models.tortoise.result import SAMPLE_RATE, Speech

__all__ = ["SAMPLE_RATE", "KittenSpeech"]


@dataclass
class KittenSpeech(Speech):
    """Speech with the attributes of every result of this package.

    ``seed`` is always 0: the noise of the published graphs is drawn inside them, so their waveforms differ from run to
    run, their durations do not. ``codes`` is the number of ids that the graph was given.
    """
