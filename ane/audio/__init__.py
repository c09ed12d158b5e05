"""Sound: reading and writing files, playback, mel spectrograms, trimming of silence."""
