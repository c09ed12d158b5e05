"""Text to phonemes by espeak-ng, and phonemes to the ids that the graph takes, as KittenTTS 0.8.1 has them
(kittentts/onnx_model.py).

The extra ``kitten`` installs espeak-ng. It is GPL-3.0-or-later, so nothing else imports it.
"""

import os
import re
import threading
from collections.abc import Callable

import numpy as np

from ane.models.styletts.stages import VOCABULARY
from ane.system.errors import UserError

Phonemizer = Callable[[str], str]       # English text → IPA with stress marks, punctuation kept

END_ID = 10                             # "…", which ends every text

# espeak-ng has one state for the whole process: concurrent calls return wrong phonemes. Every call takes this lock.
PHONEMIZER_LOCK = threading.RLock()


def phonemize(phonemizer: Phonemizer, text: str) -> str:
    """IPA of ``text``. Only one thread of the process is in a phonemizer at a time."""
    with PHONEMIZER_LOCK:
        return phonemizer(text)


def word_ids(phonemes: str, text: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Ids (T,) int64, and each word of ``text`` with its first id and the one after its last.

    The ids are those of the words and marks of ``phonemes``, joined by spaces, between the pad and "…" with the pad;
    characters outside the vocabulary are dropped. There are no words when the phonemes have another number of them.
    """
    groups, words, ids = phonemes.split(), text.split(), [0]
    spans: dict[int, tuple[int, int]] = {}
    for index, group in enumerate(groups):
        for piece in re.findall(r"\w+|[^\w\s]", group):
            ids += [VOCABULARY[" "]] * bool(spans)
            first, _ = spans.get(index, (len(ids), 0))
            ids += [VOCABULARY[character] for character in piece if character in VOCABULARY]
            spans[index] = first, len(ids)
    aligned = len(words) == len(groups)
    return (np.array([*ids, END_ID, 0], np.int64),
            [(word, *spans[index]) for index, word in enumerate(words)] if aligned else [])


def load_espeak() -> Phonemizer:
    """Load espeak-ng for American English, as KittenTTS does: stress marks, punctuation preserved.

    The data of the espeakng_loader wheel is passed on in the variable ESPEAK_DATA_PATH of this process.

    Raises:
        UserError: phonemizer or espeakng_loader is not installed, or the library does not load.
    """
    try:
        import espeakng_loader
        from phonemizer.backend import EspeakBackend
        from phonemizer.backend.espeak.wrapper import EspeakWrapper
    except ImportError as error:
        raise UserError(f"KittenTTS needs {error.name} to convert text to phonemes: pip install '.[kitten]' "
                        "(espeak-ng, GPL-3.0-or-later), or set phonemizer, a function from text to IPA") from error
    try:
        EspeakWrapper.set_library(espeakng_loader.get_library_path())
        os.environ["ESPEAK_DATA_PATH"] = espeakng_loader.get_data_path()
        backend = EspeakBackend("en-us", preserve_punctuation=True, with_stress=True)
    except (RuntimeError, OSError) as error:
        raise UserError(f"espeak-ng does not load: {error}; pip install --force-reinstall espeakng_loader "
                        "phonemizer") from error

    return lambda text: backend.phonemize([text])[0]
