"""Voices: from a name, a path or a mix of them to the pair of latents that conditions both models.

Read in this order: ``voice`` (what a voice is, and its files), ``finding`` (names and paths), ``encoding`` (clips to
latents), ``mixing``, ``cache``, and ``resolving``, which is the five as one function.
"""

from ane.voices.encoding import encode_clips, random_voice
from ane.voices.finding import RANDOM, FoundVoice, find_voice, list_voices
from ane.voices.mixing import mix_voices, parse_mix
from ane.voices.resolving import not_cloned, resolve_voice
from ane.voices.voice import Clips, Voice, load_voice, open_voice, save_voice

__all__ = ["RANDOM", "Clips", "FoundVoice", "Voice", "encode_clips", "find_voice", "list_voices", "load_voice",
           "mix_voices", "not_cloned", "open_voice", "parse_mix", "random_voice", "resolve_voice", "save_voice"]
