"""Call the functions of Whisper's packages with test inputs. Each kind of function has one probe here.

``converters.function_table.Probe`` explains the arguments and the result of a probe. The argument ``bucket`` has the
fixed lengths of the function. The test inputs are a little shorter. A window is the stretch of audio that the encoder
encodes in one call.
"""

from collections.abc import Mapping

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Bundle

PREFIX = 5  # number of tokens in a prefix, unless a probe tests long prefixes


def encoder(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Encode a random spectrogram, and return the states."""
    config = model.config("encoder")
    mel = rng.standard_normal((1, config.n_mels, 2 * config.n_audio_ctx), dtype=np.float32)
    return [backend.run("encoder", mel=0.5 * mel)]


def memory(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Decode a short prefix for one random window, then a prefix for another window. Return all outputs."""
    decoder = backend.decoder(1, 1)
    outputs: list[np.ndarray] = []
    for _ in range(2):
        decoder.set_memory(window_states(model, rng))
        outputs += decoder.prefill(random_columns(backend, rng, 1, PREFIX)[0])
    return outputs


def prefill(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Decode four prefixes that are nearly as long as the function allows, and one step after the third.

    Return all outputs.
    """
    decoder = backend.decoder(1, 1)
    outputs: list[np.ndarray] = []
    decoder.set_memory(window_states(model, rng))
    for missing in (5, 3, 2, 9):
        length = min(bucket["columns"] - missing, model.config("decoder").n_text_ctx // 2 + 1)
        outputs += decoder.prefill(random_columns(backend, rng, 1, length)[0])
        if missing == 2:  # not after the last prefix: `ane verify --layers` must look into a prefill, the last call
            outputs += decoder.step(random_columns(backend, rng, 1, 1, length), np.zeros(1, dtype=np.int64))
    return outputs


def step(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run three steps on lanes (sequences) of up to two windows, then decode several positions of a lane at once.

    In the third step, one lane starts again.
    """
    lanes, tail = min(bucket["columns"], (bucket["slots"] - 2 * PREFIX) // 6), 3
    windows = min(lanes, bucket.get("windows", 2))
    decoder = backend.decoder(lanes, 6, windows, PREFIX)
    outputs: list[np.ndarray] = []
    for window in range(windows):
        decoder.set_memory(window_states(model, rng), window)
        outputs += decoder.prefill(random_columns(backend, rng, 1, PREFIX)[0], window)
    length, window_of = np.zeros(lanes, dtype=np.int64), np.arange(lanes) % windows
    for index in range(3):
        length[-1] *= index != 2
        outputs += decoder.step(random_columns(backend, rng, lanes, 1, PREFIX), length, 0, window_of)
        length += 1
    last = random_columns(backend, rng, 1, tail, PREFIX)
    return [*outputs, *decoder.step(last, length[-1:], lanes - 1, window_of[-1:])]


def window_states(model: Bundle, rng: np.random.Generator) -> np.ndarray:
    """Return random states of a window, (N, D), with the variance that the encoder's last norm gives them."""
    config = model.config("decoder")
    return rng.standard_normal((config.n_audio_ctx, config.n_text_state), dtype=np.float32)


def random_columns(backend: Backend, rng: np.random.Generator, rows: int, count: int, first: int = 0) -> np.ndarray:
    """Return columns of random tokens, (rows, count, D), at ``count`` positions from position ``first`` on."""
    tables = backend.embeddings()
    ids = rng.integers(0, len(tables["token"]), (rows, count))
    return tables["token"][ids] + tables["position"][first : first + count]


def store(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Decode a long prefix, and run a step that reads it from the kv-cache. The function ``store`` fills the cache.

    If the model allows prefixes that are long enough, ``store`` copies more than one block.
    """
    length = min(2 * bucket["columns"] - 5, model.config("decoder").n_text_ctx // 2 + 1)
    decoder = backend.decoder(1, 2)
    decoder.set_memory(window_states(model, rng))
    outputs = [*decoder.prefill(random_columns(backend, rng, 1, length)[0])]
    return [*outputs, *decoder.step(random_columns(backend, rng, 1, 1, length), np.zeros(1, dtype=np.int64))]


def step_prefixes(
    backend: Backend, model: Bundle, lengths: Mapping[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Run steps whose lanes (sequences) have different positions and belong to three windows.

    One lane changes to another window. The windows have different numbers of lanes.
    """
    lanes, windows = lengths["lanes"], 3
    decoder = backend.decoder(lanes, 6, windows, PREFIX)
    for window in range(windows):
        decoder.set_memory(window_states(model, rng), window)
        decoder.prefill(random_columns(backend, rng, 1, PREFIX - window)[0], window)
    window_of, length = np.arange(lanes) ** 2 % windows, np.zeros(lanes, dtype=np.int64)
    outputs = [*decoder.step(random_columns(backend, rng, lanes, 2, PREFIX), length, 0, window_of)]
    length += 1 + np.arange(lanes) % 2
    window_of[0], length[0] = 2, 0
    return [*outputs, *decoder.step(random_columns(backend, rng, lanes, 1, PREFIX), length, 0, window_of)]
