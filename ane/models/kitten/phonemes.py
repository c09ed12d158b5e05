"""Phonemes to the ids that the graph takes. The vocabulary is that of KittenTTS 0.8.1 (kittentts/onnx_model.py)."""

import re
import threading
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ane.text.splitter import is_abbreviation

Phonemizer = Callable[[str], str]       # English text → IPA with stress marks, punctuation kept

PAD = "$"
END_ID = 10                             # "…", which ends every text
PUNCTUATION = ';:,.!?¡¿—…"«»"" '        # the quotation mark three times; the last index of a character counts
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IPA = ("ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃ"
       "ˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ")
SYMBOLS = PAD + PUNCTUATION + LETTERS + IPA                                 # 178, of which 175 differ
VOCABULARY = {symbol: index for index, symbol in enumerate(SYMBOLS)}        # character → id

# espeak-ng has one state for the whole process: concurrent calls return wrong phonemes. Every call takes this lock.
PHONEMIZER_LOCK = threading.RLock()


def phonemize(phonemizer: Phonemizer, text: str) -> str:
    """IPA of ``text``. Only one thread of the process is in a phonemizer at a time."""
    with PHONEMIZER_LOCK:
        return phonemizer(text)


def token_ids(phonemes: str) -> np.ndarray:
    """Ids of the words and marks of ``phonemes``, joined by spaces, between the pad and "…" with the pad.

    Characters outside the vocabulary are dropped. Returns (1, T) int64, T ≥ 3.
    """
    spaced = " ".join(re.findall(r"\w+|[^\w\s]", phonemes))
    ids = [VOCABULARY[character] for character in spaced if character in VOCABULARY]
    return np.array([[0, *ids, END_ID, 0]], np.int64)


def without_abbreviation_dots(text: str, phonemes: str) -> str:
    """``phonemes`` of ``text`` without the full stops of abbreviations ("dr. smith", "u.s.a."), which are no pauses.

    The last full stop of the text always stays. The phonemes are unchanged unless they have as many full stops.
    """
    if text.count(".") != phonemes.count("."):
        return phonemes
    kept: list[bool] = []
    for word, following in pairwise([*text.split(), ""]):
        dots = word.count(".")
        core = word.strip(",;:!?\"'()")
        abbreviated = core != "i." and is_abbreviation(core, following or "x")      # "so did i. then"
        last_stays = not following and word.rstrip("\"')").endswith(".")
        kept += [not abbreviated] * (dots - last_stays) + [True] * last_stays
    parts = phonemes.split(".")
    return parts[0] + "".join((". " if stays else " ") + part for stays, part in zip(kept, parts[1:], strict=True))
