"""Measure the time and word errors of `ane transcribe`, faster-whisper and openai-whisper, each as a whole process.

All programs use Whisper base, and always take the likeliest token. They transcribe the same recording, which the
default voice speaks. A row has the seconds of processor time that the process takes, including its start, and the word
errors of its text. faster-whisper and openai-whisper are measured only if they are installed, for example in a folder
on PYTHONPATH that ``pip install --target DIR faster-whisper openai-whisper`` wrote.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import soundfile
import torch

import ane
from ane.audio import resample
from ane.bench.measure import RepeatedCall
from ane.bench.records import BenchRow
from ane.bundles import Bundle
from ane.system.errors import UserError
from ane.text import normalise_english
from benchmarks.data_packages import whisper_folder
from benchmarks.imports import imported
from benchmarks.listening import edits, words
from training.text import held_out_sentences

SENTENCES = 24  # number of sentences in the recording, which is about 72 s long
FASTER_WHISPER = """
import sys
from faster_whisper import WhisperModel
_, model, kind, sound = sys.argv
segments, _ = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=1).transcribe(
    sound, language="en", beam_size=1
)
print("".join(segment.text for segment in segments))
"""

OPENAI_WHISPER = """
import sys, wave
import numpy, torch, whisper
_, model, sound = sys.argv
torch.set_num_threads(1)
with wave.open(sound) as file:
    audio = numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16).astype(numpy.float32) / 32768
print(whisper.load_model(model, device="cpu").transcribe(audio, language="en", fp16=False)["text"])
"""  # openai-whisper's own command would need the program FFmpeg to read sound


def transcriptions(folder: Path) -> Iterator[RepeatedCall]:
    """Yield one call for each installed program and precision. ``folder`` gets the recording and the models."""
    text, sound = " ".join(held_out_sentences()[:SENTENCES]), folder / "speech.wav"
    speech = ane.load().speak(text, seed=1)
    samples = resample(speech.audio, speech.sample_rate, 16000)
    soundfile.write(sound, samples, 16000, subtype="PCM_16")
    checkpoint = whisper_folder("base")
    bundle = imported(checkpoint)
    python = sys.executable
    commands = {
        f"ane transcribe, {precision}": [
            *(python, "-m", "ane", "transcribe", str(sound), "--model", str(bundle.path), "--language", "en"),
            *("--quiet", "--threads", "1", "--precision", precision),
        ]
        for precision in ("fp32", "bf16", "int8")
    }
    if installed("faster_whisper", "faster-whisper"):
        model = str(faster_whisper_folder(checkpoint, folder / "faster-whisper"))
        commands |= {
            f"faster-whisper, {kind}": [python, "-c", FASTER_WHISPER, model, kind, str(sound)]
            for kind in ("float32", "int8")
        }
    if installed("whisper", "openai-whisper"):
        model = str(openai_file(bundle, folder / "base.pt"))
        commands["openai-whisper, fp32"] = [python, "-c", OPENAI_WHISPER, model, str(sound)]
    for name, command in commands.items():
        row = BenchRow(name, f"transcription of {speech.seconds:.0f} s", "CPU s", {"model": "Whisper base"})
        yield RepeatedCall(row, partial(cpu_seconds, command, text))


def installed(module: str, package: str) -> bool:
    """Return whether a module is installed. If it is not, say so on standard error."""
    if find_spec(module) is None:
        print(f"{package} is left out: it is not installed", file=sys.stderr)
        return False
    return True


def cpu_seconds(command: Sequence[str], text: str) -> dict[str, float | None]:
    """Run a command that prints a transcript. Measure its processor time and the word errors of the transcript."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        raise UserError(f"status {result.returncode} from {command[:3]}: {result.stderr.strip()[-300:]}")
    expected = words(normalise_english(text))
    return {
        "value": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_s": seconds,
        "word_errors": edits(expected, words(normalise_english(result.stdout))) / len(expected),
    }


def faster_whisper_folder(checkpoint: Path, folder: Path) -> Path:
    """Write a folder with the files of a checkpoint and vocabulary.json, which CTranslate2 needs."""
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    content = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    ids = content["model"]["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    timestamps = [f"<|{step * 0.02:.2f}|>" for step in range(1501)]
    first = ids.get("<|0.00|>", len(ids))
    names = [name for name, index in sorted(ids.items(), key=lambda item: item[1]) if index < first]
    (folder / "vocabulary.json").write_text(json.dumps(names + timestamps), encoding="utf-8")
    return folder


def openai_file(bundle: Bundle, path: Path) -> Path:
    """Write the weights of a bundle in the format of openai-whisper."""
    sizes = {
        name: value
        for network in ("encoder", "decoder")
        for name, value in vars(bundle.config(network)).items()
        if name.startswith("n_")
    }
    state = {
        f"{network}.{key}": tensor
        for network in ("encoder", "decoder")
        for key, tensor in bundle.tensors(network).items()
    }
    torch.save({"dims": sizes, "model_state_dict": state}, path)
    return path
