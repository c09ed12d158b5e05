"""Find, read, mix and store the voices of Tortoise models. A voice is a pair of latents, one for each of two networks.

Start with the module ``voice``, which has voices, their files, mixes and the cache. ``finding`` looks up names and
paths. The module ``ane.models.tortoise.voices`` computes latents from clips.
"""

from ane.voices.finding import (
    RANDOM,
    FoundVoice,
    check_named_voice,
    check_voice_name,
    consent_file,
    find_voice,
    list_voices,
    stored_files,
    stored_voice,
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
    "consent_file",
    "find_voice",
    "list_voices",
    "load_voice",
    "mix_voices",
    "open_voice",
    "parse_mix",
    "save_voice",
    "stored_files",
    "stored_voice",
    "voice_names",
]
