"""Give each test of a command a separate home and working folder, and a terminal that breaks no lines."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ane.audio import write
from ane.bundles import Bundle
from ane.bundles.writing import write_bundle
from ane.cli import main
from ane.voices import Voice, save_voice
from tests.preloaded import write_client

RATE = 22050


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    for variable in ("ANE_VOICE", "ANE_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def speech() -> np.ndarray:
    """A second of a buzzing tone at 22050 Hz."""
    t = np.arange(RATE) / RATE
    return (0.3 * np.sin(2 * np.pi * 140 * t) * np.sin(2 * np.pi * 3 * t)).astype(np.float32)


@pytest.fixture
def golden_copy(golden_checkpoints: Path, golden_config: Path, tmp_path: Path) -> Path:
    """A writable copy of tiny official-layout checkpoints."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(golden_checkpoints, directory, copy_function=shutil.copyfile)
    shutil.copyfile(golden_config, directory / "config.json")
    return directory


@pytest.fixture(scope="session")
def kokoro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle in the layout of Kokoro, with the voices af_heart and af_bella; tests must not change it."""
    from tests.imported import imported
    from tests.models.kitten.kitten_model import write_kokoro_model

    folder = tmp_path_factory.mktemp("kokoro")
    return imported(write_kokoro_model(folder / "published"), folder / "bundle").path


@pytest.fixture(scope="session")
def whisper_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.models.whisper.random_whisper import write_openai

    return write_openai(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def whisper(whisper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a bundle; tests must not change it."""
    from tests.imported import imported

    return imported(whisper_file, tmp_path_factory.mktemp("bundles") / "whisper").path


@pytest.fixture
def recordings(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings in the working folder; talk.flac has 2 s of noise at 22.05 kHz in stereo, and the others are silent.

    Random weights write down unclear text at every temperature, of which the first is enough here.
    """
    from ane.models.whisper.transcription import TranscriptionOptions

    monkeypatch.setattr(TranscriptionOptions, "must_retry", lambda *_: False)
    soundfile.write("talk.flac", np.random.default_rng(0).uniform(-0.5, 0.5, (44100, 2)), RATE)
    for name, samples in (("a", 1600), ("b", 1600), ("empty", 0), ("silent", 32000)):
        soundfile.write(f"{name}.wav", np.zeros(samples), 16000)
    return workplace / "talk.flac"


def latents(value: float, name: str = "") -> Voice:
    """A voice of the size of the golden set's."""
    return Voice(np.full((1, 32), value, np.float32), np.full((1, 80), value, np.float32), name)


@pytest.fixture(scope="session")
def voiced(tmp_path_factory: pytest.TempPathFactory, golden_model: Bundle) -> Path:
    """A bundle of the golden set's tiny checkpoints with the voice builtin; tests must not change it."""
    voice = tmp_path_factory.mktemp("voices") / "builtin.safetensors"
    save_voice(voice, latents(1.0, "builtin"))
    return write_bundle(golden_model.contents(), voice.parent / "bundle", voices={"builtin": voice}).path


@pytest.fixture
def clips(tmp_path: Path) -> list[Path]:
    """Two clips, clips/0.wav and clips/1.wav, of which the second is longer than six seconds."""
    files = [tmp_path / "clips" / f"{number}.wav" for number in range(2)]
    files[0].parent.mkdir()
    for number, file in enumerate(files):
        time = np.arange(RATE * (1 + 6 * number)) / RATE
        write(file, (0.4 * np.sin(2 * np.pi * (150 + 200 * time) * time)).astype(np.float32), RATE)
    return files


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the layout of Hugging Face."""
    from tests.models.whisper.random_whisper import write_hugging_face

    return write_hugging_face(tmp_path_factory.mktemp("whisper") / "source")


@pytest.fixture(scope="session")
def kitten_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published KittenTTS model, and the bundle that it becomes; tests must not change them."""
    from tests.models.kitten.kitten_model import write_kitten_model

    folder = tmp_path_factory.mktemp("kitten")
    (folder / "home" / "bundles").mkdir(parents=True)
    write_kitten_model(folder / "published")
    assert main(["import", str(folder / "published"), "-o", str(folder / "home" / "bundles" / "kitty")]) == 0
    return folder


@pytest.fixture
def kitty(kitten_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of that bundle, a copy; espeak-ng is replaced by the letters of the text."""
    from ane.models.kitten import synthesizer
    from tests.models.kitten.kitten_model import letters

    monkeypatch.setattr(synthesizer, "load_espeak", lambda: letters)
    shutil.copytree(kitten_folder, tmp_path, dirs_exist_ok=True)
    return "kitty"


@pytest.fixture(scope="session")
def fastspeech_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """checkpoint.pt, generator.pth and the bundle that they become; tests must not change them."""
    from tests.fastspeech_files import write_fastspeech, write_hifigan

    folder = tmp_path_factory.mktemp("fastspeech")
    checkpoint, vocoder = write_fastspeech(folder / "checkpoint.pt"), write_hifigan(folder / "generator.pth")
    assert main(["import", str(checkpoint), "--vocoder", str(vocoder), "-o", str(folder / "bundle")]) == 0
    return folder


@pytest.fixture
def fastspeech(fastspeech_folder: Path, tmp_path: Path) -> Path:
    """Copies of them in the working folder."""
    return shutil.copytree(fastspeech_folder, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def ane_program(preloaded_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH in which `ane` is a client of the preloaded server."""
    folder = tmp_path_factory.mktemp("bin")
    write_client(folder / "ane", preloaded_server, ("-m", "ane"))
    return folder


@pytest.fixture
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.fixture(scope="session")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of one function, main: a step of the tiny decoder."""
    from converters.coreml.coreml_package import load_reference
    from converters.coreml.graph import Style
    from converters.tortoise import autoregressive
    from tests.random_model import random_model

    path = tmp_path_factory.mktemp("packages") / "step.mlpackage"
    autoregressive.decoder_graphs(load_reference(random_model(), "autoregressive")).step(4, 64).build(Style(), path)
    return path


@pytest.fixture
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plain progress lines, even on a slow machine."""
    monkeypatch.setattr("ane.commands.messages.INTERVAL", float("inf"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with packages of the decoder and of random latents."""
    from tests.small_bundle import write_small_bundle

    return write_small_bundle(tmp_path_factory.mktemp("bundles"), ["autoregressive", "rlg_auto"])


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(conv(x)) + x in fp16."""
    from tests.backends.mil.programs import WEIGHT, convert, mb, saved

    program = convert(lambda x: mb.add(x=mb.relu(x=mb.conv(x=x, weight=WEIGHT, name="product")), y=x, name="sum"))
    return saved(program, tmp_path_factory.mktemp("package"))


@pytest.fixture
def inputs(package: Path, workplace: Path) -> None:
    """Inputs of that package, what the interpreter computes of them, and files that do not fit."""
    from tests.backends.mil.programs import X, normal, run

    for name, array in (("interpreted", run(package)), ("wrong", run(package) + 0.1)):
        np.savez(f"{name}.npz", sum=array)
    np.savez("x.npz", x=X)
    np.savez("other.npz", y=normal(1, 2))
    np.save("array.npy", X)
