"""Voices: the pair of latents that conditions both models, the files that hold one, names, paths and mixes.

Read in this order: ``voice`` (what a voice is, its files, mixes and the cache), ``finding`` (names and paths).
The model computes latents from clips (``ane.models.tortoise.voices``).
"""

from ane.voices.finding import (
    RANDOM,
    FoundVoice,
    check_named_voice,
    check_voice_name,
    find_voice,
    list_voices,
    voice_names,
)
from ane.voices.voice import Clips, Voice, load_voice, mix_voices, open_voice, parse_mix, save_voice

__all__ = [
    "RANDOM",
    "Clips",
    "FoundVoice",
    "Voice",
    "check_named_voice",
    "check_voice_name",
    "find_voice",
    "list_voices",
    "load_voice",
    "mix_voices",
    "open_voice",
    "parse_mix",
    "save_voice",
    "voice_names",
]
