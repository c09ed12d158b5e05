"""Speak a sentence with the default voice, and save it."""

import ane

speech = ane.load().speak("The kettle sings before anyone is awake.", seed=1)
speech.save("speak.wav")
print(f"{speech.seconds:.2f} s of speech → speak.wav")
