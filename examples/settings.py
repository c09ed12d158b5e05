"""Choose a bundle, a preset and a seed. The small Tortoise has two voices. The same seed gives the same speech."""

import ane

tortoise = ane.load("demo")
first, second = (
    tortoise.speak("Slow and steady.", voice="michael", preset="fastest", seed=7, word_times=True) for _ in range(2)
)
print(f"seed {first.seed}: {first.seconds:.2f} s, the same twice: {(first.audio == second.audio).all()}")
for word in first.words:
    print(f"{word.start:5.2f} to {word.end:5.2f} s  {word.word}")
