"""Speak many texts with one loaded voice, and join them with pauses."""

import numpy as np
import soundfile

import ane

LINES = ("Chapter one.", "It had rained for a week.", "Then, on Sunday, it stopped.")
PAUSE_SECONDS = 0.6

voice = ane.load()
pause = np.zeros(int(PAUSE_SECONDS * voice.sample_rate), np.float32)
parts = [part for speech in voice.speak_all(LINES, seed=1) for part in (speech.audio, pause)]
soundfile.write("many.wav", np.concatenate(parts), voice.sample_rate)
print(f"{len(LINES)} texts → many.wav")
