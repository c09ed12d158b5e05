"""Campaign: are words that a lexicon respells heard as they were respelled?

    python -m tests.text.respellings [--entries 100] [--voice rms] [-o FILE.json]

Names of the recogniser's dictionary are respelled as common words that sound otherwise. Each is spoken in a sentence
with the lexicon and without it. The recogniser pocketsphinx then decides between the two words at that place, and
writes down the phonemes that it hears in the sentence without any dictionary.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import ane
from ane.audio import resample
from ane.system.files import write_json
from ane.text import Tokenizer, read_lexicon
from benchmarks.listening import RECOGNISED_RATE, edits

BEFORE, AFTER = "my brother said", "and went home"
LEAST_APART = 4         # phonemes by which the two words must differ
LETTERS = range(5, 9)   # of a word
FREQUENT, RARE = slice(300, 4000), slice(15000, 60000)      # ranks of common words and of names
RESULT = Path(__file__).with_suffix(".json")


class PhonemeRecogniser:
    """pocketsphinx, which decides between words in a sentence, or writes down phonemes."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder, get_model_path

        self.words = Decoder(samprate=RECOGNISED_RATE, loglevel="FATAL", lm=None)
        self.phones = Decoder(samprate=RECOGNISED_RATE, loglevel="FATAL", lm=None, lw=2.0,
                              allphone=get_model_path("en-us/en-us-phone.lm.bin"))

    def pronunciation(self, word: str) -> list[str]:
        """Empty: not in the dictionary."""
        return (self.words.lookup_word(word) or "").split()

    def decided(self, audio: np.ndarray, rate: int, *words: str) -> str:
        """Which of the words is heard between ``BEFORE`` and ``AFTER``."""
        self.words.add_jsgf_string(
            "choice", f"#JSGF V1.0; grammar choice; public <s> = {BEFORE} ({' | '.join(words)}) {AFTER};")
        self.words.activate_search("choice")
        heard = self._heard(self.words, audio, rate)
        return next((word for word in words if word in heard), "")

    def written(self, audio: np.ndarray, rate: int) -> list[str]:
        return [phone for phone in self._heard(self.phones, audio, rate) if phone.isalpha() and phone != "SIL"]

    @staticmethod
    def _heard(decoder: Any, audio: np.ndarray, rate: int) -> list[str]:
        samples = np.rint(np.clip(resample(audio, rate, RECOGNISED_RATE), -1, 1) * 32767).astype(np.int16)
        silence = np.zeros(RECOGNISED_RATE // 5, np.int16)
        decoder.start_utt()
        decoder.process_raw(np.concatenate((silence, samples, silence)).tobytes(), full_utt=True)
        decoder.end_utt()
        hypothesis = decoder.hyp()
        return hypothesis.hypstr.split() if hypothesis else []


def pairs(recogniser: PhonemeRecogniser, count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Different rare words, each with another common word to respell it."""
    from wordfreq import top_n_list

    ranked = [word for word in top_n_list("en", RARE.stop) if word.isascii() and word.isalpha()]
    known = [[word for word in ranked[ranks] if len(word) in LETTERS and recogniser.pronunciation(word)]
             for ranks in (RARE, FREQUENT)]
    rare, frequent = (rng.sample(words, min(len(words), 4 * count)) for words in known)
    found = [(word, other) for word, other in zip(rare, frequent, strict=False)
             if edits(recogniser.pronunciation(word), recogniser.pronunciation(other)) >= LEAST_APART]
    return found[:count]


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    recogniser, synthesizer = PhonemeRecogniser(), ane.load(keep=True)
    entries = pairs(recogniser, options.entries, random.Random(options.seed))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.tsv"
        path.write_text("".join(f"{word}\t{other}\n" for word, other in entries), encoding="utf-8")
        lexicon = read_lexicon(path)
    tokenizer = Tokenizer(synthesizer.model.tokenizer, "english")
    tried = []
    for word, other in entries:
        text = f"{BEFORE} {word} {AFTER}."
        plain, respelled = (synthesizer.speak(text, voice=options.voice, preset="fastest", seed=options.seed,
                                              lexicon=used).audio for used in (None, lexicon))
        target = [phone for one in f"{BEFORE} {other} {AFTER}".split() for phone in recogniser.pronunciation(one)]
        distances = [edits(target, recogniser.written(sound, 24000)) for sound in (plain, respelled)]
        tried.append({
            "word": word, "respelled": other,
            "tokens_differ": tokenizer.encode(lexicon(text)) != tokenizer.encode(text),
            "heard_without": recogniser.decided(plain, 24000, word, other),
            "heard_with": recogniser.decided(respelled, 24000, word, other),
            "phonemes_from_target_without": distances[0], "phonemes_from_target_with": distances[1]})
    before, after = (fmean(one[f"phonemes_from_target_{when}"] for one in tried) for when in ("without", "with"))
    return {"voice": options.voice, "seed": options.seed, "entries": len(tried),
            "tokens_differ": sum(one["tokens_differ"] for one in tried),
            "heard_as_written_without_lexicon": sum(one["heard_without"] == one["word"] for one in tried),
            "heard_as_respelled_with_lexicon": sum(one["heard_with"] == one["respelled"] for one in tried),
            "nearer_to_target": sum(one["phonemes_from_target_with"] < one["phonemes_from_target_without"]
                                    for one in tried),
            "mean_phonemes_from_target": {"without_lexicon": before, "with_lexicon": after}, "tried": tried}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100)
    parser.add_argument("--voice", default="rms")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    result = campaign(options)
    write_json(options.output, result)
    sys.stdout.write(f"{result['entries']} entries: tokens differ in {result['tokens_differ']}, heard as respelled in "
                     f"{result['heard_as_respelled_with_lexicon']}, nearer in phonemes in "
                     f"{result['nearer_to_target']}; {options.output}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
