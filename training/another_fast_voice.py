"""Train another voice in hibari's form: fine-tune the embedded voice heart to a voice of Kokoro.

    python -m training.another_fast_voice -o run/ --minutes 30      # goes on from the last checkpoint in run/
    ane say "Hello." --bundle run/bundle -o hello.wav

Kokoro speaks the texts, and the networks learn its durations, f0 and energy by regression. The spectra learn from the
sound (``training.spectral_distance``), because Kokoro has none. The result is an int8 graph and a bundle.
"""

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ane.bundles.bundle import Bundle
from ane.bundles.opening import DEFAULT_BUNDLE, demo_bundle
from ane.bundles.writing import write_bundle
from ane.models.durations import length_mask
from ane.models.hibari.config import PITCH_SCALE
from ane.models.hibari.networks import Hibari
from ane.models.hibari.published import import_published, int8_weights
from ane.models.hibari.synthesizer import LOG_PITCH_SCALE, MOST_SILENCE, SLOW_FRAME
from ane.models.vocoders.harmonic_noise import HOP
from ane.system.errors import UserError
from benchmarks.data_packages import package_folder
from training.kokoro_speech import Utterance, load_utterances, speak_files
from training.program import TrainingProgram
from training.spectral_distance import SpectralDistance, pulses_of, stretch_spectra, two_sounds
from training.speech import Batches
from training.text import texts_of_a_voice
from training.trainer import PartSchedule, TrainedPart, Trainer, fast_autocast

CONFIG = Path(__file__).parent / "config" / "fast_voice.toml"
PART = "fast_voice"  # name of the folder with the checkpoint
FILE_TEXTS = 20  # texts in a file of speech
VALIDATION = 20  # every n-th text is held back
SILENT_END = 4  # slow frames of the silence at the end whose sound is learned
MOST_FRAMES = 256  # frames of the longest crop
HALF_WAY = 127  # largest int8
DURATIONS, PITCH, ENERGY = 0.5, 2.0, 0.5  # weights of the losses next to that of the sound


class FastVoice(BaseModel):
    """What training/config/fast_voice.toml says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    voice: str
    texts: int
    stretch: float
    schedule: PartSchedule


def heart() -> Hibari:
    """Return the model of the embedded voice heart, with its int8 weights as floats."""
    bundle = Bundle(demo_bundle(DEFAULT_BUNDLE))
    model = Hibari(bundle.config("hibari"))
    model.load_state_dict(bundle.tensors("hibari"))
    return model


class Lessons:
    """The utterances of a voice in batches, and the losses of a model on them."""

    def __init__(self, utterances: Sequence[Utterance], frames: int, seed: int):
        self.parts = [(utterance, utterance.between(MOST_SILENCE, SILENT_END)) for utterance in utterances]
        lengths = [min(part.stop - part.start, MOST_FRAMES) for _, part in self.parts]
        self.batches = Batches(lengths, frames, seed)
        self.distance = SpectralDistance()

    def losses(self, model: Hibari, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the batch of a step. "loss" is their weighted sum."""
        parts = [self.parts[index] for index in self.batches[step]]
        utterances = [utterance for utterance, _ in parts]
        counts = [torch.from_numpy(utterance.durations) for utterance in utterances]
        mask = mask_of([len(utterance.ids) for utterance in utterances])
        ids = pad_sequence([torch.from_numpy(utterance.ids) for utterance in utterances], batch_first=True)
        for_prosody, for_sound, log_durations = model.text(ids, mask).split(
            [model.config.prosody_width, model.config.width, 1], dim=2
        )
        wanted = pad_sequence([count.float() for count in counts], batch_first=True).log1p()
        durations = ((log_durations[..., 0] - wanted).abs() * mask).sum() / mask.sum()

        slow = [
            row[: len(count)].repeat_interleave(count, dim=0) for row, count in zip(for_prosody, counts, strict=True)
        ]
        prosody = model.prosody(pad_sequence(slow, batch_first=True), mask_of([len(rows) for rows in slow]))
        heard = mask_of([SLOW_FRAME * len(rows) for rows in slow])
        curves = [torch.from_numpy(np.stack((utterance.f0, utterance.energy), axis=1)) for utterance in utterances]
        errors = ((prosody - pad_sequence(curves, batch_first=True)).abs() * heard[..., None]).sum(dim=(0, 1))
        pitch, energy = errors / heard.sum()
        pitch = pitch / PITCH_SCALE

        sound = self.sound_loss(model, parts, counts, for_sound, generator)
        loss = sound + DURATIONS * durations + PITCH * pitch + ENERGY * energy
        return {"loss": loss, "sound": sound, "durations": durations, "pitch": pitch, "energy": energy}

    def sound_loss(
        self,
        model: Hibari,
        parts: Sequence[tuple[Utterance, slice]],
        counts: Sequence[Tensor],
        states: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the distance of the sound of a crop of every utterance.

        The states (B, T, C) are those of the phonemes, and the spectra are made with Kokoro's durations, f0 and energy.
        """
        size = min(MOST_FRAMES, *(part.stop - part.start for _, part in parts))
        frames, pulses, speech = [], [], []
        for (utterance, part), count, row in zip(parts, counts, states, strict=True):
            first = part.start + int(torch.randint(part.stop - part.start - size + 1, (), generator=generator))
            crop, samples = slice(first, first + size), slice(HOP * first, HOP * (first + size))
            repeated = row[: len(count)].repeat_interleave(SLOW_FRAME * count, dim=0)[crop]
            f0, energy = (torch.from_numpy(curve[crop])[:, None] for curve in (utterance.f0, utterance.energy))
            frames.append(torch.cat([repeated, f0.clamp(min=0).log1p() / LOG_PITCH_SCALE, energy], dim=1))
            pulses.append(pulses_of(utterance.f0[crop], generator))
            speech.append(torch.from_numpy(utterance.audio[samples]))
        with fast_autocast("cpu"):
            spectra = model.spectra(torch.stack(frames), torch.ones(len(parts), size)).float()
        one, other = two_sounds(spectra, torch.stack(pulses, dim=1), generator)
        return self.distance(one, other, torch.stack(speech))


def mask_of(lengths: Sequence[int]) -> Tensor:
    return torch.from_numpy(length_mask(np.array(lengths), max(lengths)))


def train_voice(utterances: Sequence[Utterance], voice: FastVoice, folder: Path) -> Trainer:
    """Fine-tune heart on utterances, every ``VALIDATION``-th of which only measures. Resumes from a checkpoint."""
    learned = [one for index, one in enumerate(utterances) if index % VALIDATION]
    lessons, exam = (Lessons(some, voice.schedule.batch, 0) for some in (learned, utterances[::VALIDATION]))
    model = heart()
    stretch_spectra(model.m.head, voice.stretch)
    trainer = Trainer(model, TrainedPart(folder / PART, voice.schedule, "cpu", folder / "none"))

    def validate() -> dict[str, float]:
        steps = range(exam.batches.epoch_steps)
        losses = [exam.losses(model, step, torch.Generator().manual_seed(step)) for step in steps]
        return {f"validation {name}": float(np.mean([one[name] for one in losses])) for name in losses[0]}

    if not trainer.step and not trainer.finished:
        with torch.no_grad():
            trainer.record(validate())
    trainer.run(lambda step, generator: lessons.losses(model, step, generator), validate)
    return trainer


def graph_with(published: Path, weights: Mapping[str, Tensor]) -> onnx.ModelProto:
    """Return the graph of hibari's voice heart with other weights: int8 ones with a scale for each row."""
    graph = onnx.load(published)
    tensors = {tensor.name: tensor for tensor in graph.graph.initializer}
    keys = {array.tobytes(): key for key, array in int8_weights(graph.graph).items() if array.dtype == np.int8}
    for name, tensor in tensors.items():
        key = keys.get(numpy_helper.to_array(tensor).T.tobytes())
        if name in weights:
            replace(tensor, weights[name].numpy().reshape(tuple(tensor.dims)))
        elif key is not None:
            rows = weights[key].numpy()  # (O, I)
            scales = np.maximum(np.abs(rows).max(axis=1), 1e-9) / HALF_WAY
            base = name.removesuffix("_quantized")
            replace(tensor, np.rint(rows / scales[:, None]).astype(np.int8).T)
            replace(tensors[f"{base}_scale"], scales.astype(np.float32))
            replace(tensors[f"{base}_zero_point"], np.zeros(len(scales), np.int8))
    return graph


def replace(tensor: onnx.TensorProto, array: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def write_voice(model: Hibari, published: Path, teacher: str, folder: Path) -> Bundle:
    """Write a trained voice as FOLDER/NAME.onnx in hibari's published form, and as FOLDER/bundle, which speaks."""
    name = teacher.rpartition("_")[2]
    path = folder / f"{name}.onnx"
    onnx.save(graph_with(published, model.state_dict()), path)
    return write_bundle(
        import_published(path),
        folder / "bundle",
        overwrite=True,
        name=name,
        licence="Apache-2.0",
        source={"file": path.name, "teachers": [f"kokoro {teacher}"]},
        description=f"A synthetic voice in hibari's form, which learned from speech of Kokoro-82M's voice {teacher}.",
    )


def read_config(path: Path) -> FastVoice:
    """Read the configuration. Raises UserError if it is missing or wrong."""
    try:
        return FastVoice(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:  # pydantic's and tomllib's errors are ValueErrors
        raise UserError(f"{path} does not describe a voice to train: {str(error).splitlines()[0]}") from error


def train(options: argparse.Namespace) -> None:
    voice, folder = read_config(options.config), options.output
    voice = voice.model_copy(update={"schedule": voice.schedule.model_copy(update={"minutes": options.minutes})})
    folder.mkdir(parents=True, exist_ok=True)
    published = package_folder("hibari-tts") / "hibari" / "assets" / "hibari.onnx"
    texts = texts_of_a_voice(folder / "texts.txt", options.wordnet, voice.texts, voice.schedule.seed)
    files = speak_files(folder / "speech", voice.voice, texts, FILE_TEXTS)
    utterances = [one for file in files for one in load_utterances(file)]
    model = train_voice(utterances, voice, folder).result()
    write_voice(model, published, voice.voice, folder)


def main(arguments: list[str] | None = None) -> int:
    program = TrainingProgram("training.another_fast_voice", __doc__, CONFIG, "train for at most N minutes")
    program.add_wordnet()
    return program.run(train, arguments)


if __name__ == "__main__":
    sys.exit(main())
