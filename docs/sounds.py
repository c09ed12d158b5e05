"""Make the sounds and spectrograms of docs/embedded-voice.md: python docs/sounds.py

The sounds are MP3; a picture has the frequencies up to 8 kHz from below, and seconds from the left.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import ane

FOLDER = Path(__file__).parent / "sounds"
SENTENCE = (
    "The tide was out, and the boats lay on their sides in the mud, waiting. "
    "Would you have counted them twice? She did, every morning."
)
NUMBERS = (
    "On 3 March 2024, Dr. Anne O'Neil paid £12.50 for 2 kg of apples, pears and quinces; "
    "the bill, no. 1,048, said “thank you”."
)
HIGHEST = 8000  # Hz shown
QUIETEST, LOUDEST = -140, -30  # dB of power density, from dark to light


@dataclass(frozen=True)
class Example:
    name: str
    bundle: str
    text: str = SENTENCE
    arguments: dict[str, Any] = field(default_factory=dict)


EXAMPLES = (
    Example("heart", "heart"),
    Example("heart-numbers", "heart", NUMBERS),
    Example("heart-half-speed", "heart", arguments={"speed": 0.5}),
    Example("heart-double-speed", "heart", arguments={"speed": 2.0}),
    Example("small-heart", "demo", arguments={"voice": "heart", "seed": 0}),
    Example("small-michael", "demo", arguments={"voice": "michael", "seed": 0}),
)


def draw(audio: np.ndarray, sample_rate: int, path: Path) -> None:
    """Write a spectrogram as PNG."""
    figure = Figure(figsize=(7, 2), dpi=100, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    axes.specgram(
        audio + 1e-9,
        NFFT=1024,
        Fs=sample_rate,
        noverlap=768,
        scale="dB",
        vmin=QUIETEST,
        vmax=LOUDEST,
        cmap=matplotlib.colormaps["magma"],
    )
    axes.set(ylim=(0, HIGHEST), xlabel="s", ylabel="Hz", xticks=range(int(len(audio) / sample_rate) + 1))
    canvas.draw()
    Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).quantize(32).save(path)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for example in EXAMPLES:
        speech = ane.load(example.bundle, "torch", threads=1).speak(example.text, **example.arguments)
        speech.save(FOLDER / f"{example.name}.mp3")
        draw(speech.audio, speech.sample_rate, FOLDER / f"{example.name}.png")
        print(f"{example.name}: {speech.seconds:.1f} s")


if __name__ == "__main__":
    main()
