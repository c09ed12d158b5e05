"""Make speech of a Kokoro voice together with the durations, the f0 and the energy that Kokoro computed for it.

Kokoro and hibari have the same phonemes, the same slow frames of 600 samples and the same frames of 300 samples, so a
model in hibari's form can learn these parameters from Kokoro's without any analysis of sound.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from ane.backends.onnx.providers import onnxruntime_module
from ane.models.hibari.synthesizer import SLOW_FRAME
from ane.models.phoneme_chunks import symbol_ids
from ane.models.styletts.graph import CLIPPED
from ane.models.vocoders.harmonic_noise import HOP, VOICED
from ane.system.files import replacing
from ane.text.phonemes import phonemise
from benchmarks.data_packages import kokoro_graph
from benchmarks.teachers import kokoro_style

PITCH, ENERGY = "/encoder/F0_proj/Conv_output_0", "/encoder/N_proj/Conv_output_0"  # values inside Kokoro's graph
# heart predicts 0.2 times Kokoro's N (correlation 0.999), and is as loud as 0.7 times Kokoro. 0.65 clips hardly a peak
ENERGY_UNIT, LEVEL = np.float32(5), np.float32(0.65)


@dataclass(frozen=True, eq=False)
class Utterance:
    """A text's speech with Kokoro's parameters. T is phonemes, L frames of 300 samples.

    Attributes:
        ids: Ids of the phonemes, (T,) int64.
        durations: Slow frames of each phoneme, (T,) int64. Their sum is L / 2.
        f0: Fundamental frequency in Hz, (L,) float32, 0 without voice.
        energy: Kokoro's curve N in hibari's unit, (L,) float32.
        audio: Sound at 24 kHz, (300 · L,) float32.
    """

    ids: np.ndarray
    durations: np.ndarray
    f0: np.ndarray
    energy: np.ndarray
    audio: np.ndarray

    def between(self, most_before: int, most_after: int) -> slice:
        """Return the frames with at most so many slow frames of the silence before and after the words."""
        first = SLOW_FRAME * max(int(self.durations[0]) - most_before, 0)
        return slice(first, len(self.f0) - SLOW_FRAME * max(int(self.durations[-1]) - most_after, 0))


def kokoro_utterances(voice: str) -> Callable[[str], Utterance]:
    """Return a function that speaks a text in a Kokoro voice, on one thread.

    Raises UserError if there is no such voice, or if Kokoro's packages cannot be fetched.
    """
    from onnx import GraphProto, ModelProto, TensorProto, helper

    names = CLIPPED, PITCH, ENERGY
    more = GraphProto(output=[helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names])
    onnxruntime = onnxruntime_module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(
        kokoro_graph().read_bytes() + ModelProto(graph=more).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    style = kokoro_style(voice)

    def speak(text: str) -> Utterance:
        ids, _ = symbol_ids(phonemise(text))
        inputs = {"tokens": ids[None], "style": style[len(ids) - 3][None], "speed": np.ones(1, np.float32)}
        audio, durations, f0, energy = (value.ravel() for value in session.run(["audio", *names], inputs))
        return Utterance(
            ids,
            np.rint(durations).astype(np.int64),
            np.where(f0 > VOICED, f0, np.float32(0)),
            energy / ENERGY_UNIT,
            audio[: HOP * len(f0)] * LEVEL,
        )

    return speak


def speak_files(folder: Path, voice: str, texts: Sequence[str], size: int) -> list[Path]:
    """Write the utterances of all texts in files with ``size`` utterances each. Existing files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(folder / f"{start // size:04d}.npz", texts[start : start + size]) for start in range(0, len(texts), size)]
    if missing := [job for job in jobs if not job[0].exists()]:
        speak = kokoro_utterances(voice)
        for path, some in missing:
            save_utterances(path, [speak(text) for text in some])
    return [path for path, _ in jobs]


def save_utterances(path: Path, utterances: Sequence[Utterance]) -> None:
    arrays = {
        f"{index}/{part}": value
        for index, utterance in enumerate(utterances)
        for part, value in enumerate(astuple(utterance))
    }
    with replacing(path) as target, target.open("wb") as file:
        np.savez(file, **arrays)


def load_utterances(path: Path) -> list[Utterance]:
    with np.load(path) as data:
        return [Utterance(*(data[f"{index}/{part}"] for part in range(5))) for index in range(len(data.files) // 5)]
