"""Speak with Kokoro-82M (int8, voice af_heart) in this package and in kokoro-onnx, which run the same ONNX graph.

kokoro-onnx reads text with espeak-ng. It is measured if it is installed, for example in a folder on PYTHONPATH made by
``pip install --target DIR kokoro-onnx``.
"""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import ane
from ane.system.reports import switch_off_reports
from benchmarks.data_packages import kokoro_graph
from benchmarks.imports import imported
from benchmarks.teachers import kokoro_style

VOICE = "af_heart"


def kokoro_voices(folder: Path) -> Iterator[tuple[str, Callable[[str], float]]]:
    """Yield the name and the function of each program. The function speaks a text and returns the seconds of its sound.

    Args:
        folder: Scratch folder for the graph, the voice and the imported bundle.
    """
    model = folder / "kokoro"
    model.mkdir()
    (model / "kokoro.onnx").symlink_to(kokoro_graph())
    np.savez(model / "voices.npz", **{VOICE: kokoro_style(VOICE)[:, None]})
    speaker = ane.load(imported(model).path, threads=1)
    yield "Kokoro, 1 thread", lambda text: speaker.speak(text, voice=VOICE).seconds
    if find_spec("kokoro_onnx") is None:
        print("kokoro-onnx is left out: it is not installed", file=sys.stderr)
        return
    switch_off_reports()
    import onnxruntime  # noqa: TID251
    from kokoro_onnx import Kokoro

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    graph = str(model / "kokoro.onnx")
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    peer = Kokoro.from_session(session, str(model / "voices.npz"))

    def speak(text: str) -> float:
        audio, rate = peer.create(text, VOICE)
        return len(audio) / rate

    yield "kokoro-onnx, 1 thread", speak
