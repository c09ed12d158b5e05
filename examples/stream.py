"""Get sound in pieces while it is made. The first piece comes long before the last one."""

import time

import ane

voice = ane.load()
voice.prepare()  # load the networks before the text is known
started, seconds = time.perf_counter(), 0.0
for index, piece in enumerate(voice.stream("You hear the beginning before the end of the sentence is made.", seed=1)):
    seconds += len(piece) / voice.sample_rate
    print(f"piece {index} after {time.perf_counter() - started:.3f} s: {seconds:.2f} s of speech so far")
