"""Sound: reading and writing files, resampling, playback, mel spectrograms, trimming of silence."""

from ane.audio.media import check_output, write, writing
from ane.audio.playback import check_sound_device, play
from ane.audio.reader import (
           CLIP_SUFFIXES,
           MIN_CLIP_SECONDS,
           check_clip,
           read_audio,
           read_clip,
           resample,
           resample_windowed_sinc,
)

__all__ = ["CLIP_SUFFIXES", "MIN_CLIP_SECONDS", "check_clip", "check_output", "check_sound_device", "play",
           "read_audio", "read_clip", "resample", "resample_windowed_sinc", "write", "writing"]
