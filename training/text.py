"""What the teachers are given to say: plain sentences, dictionary examples and definitions, and strings of words.

Everything is lower case and spelled out already, the form that the English normaliser gives the networks.
"""

import random
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import accumulate, islice
from pathlib import Path

from ane.system.errors import UserError
from ane.system.files import replacing
from ane.text import NORMALISERS
from training.grammar import plain_sentence

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = "',.?!;:-"
SHORTEST, LONGEST = 3, 130      # characters of a clip
SHARED_WORDS = 5                # a clip with so many words in a row of a held-out sentence is left out
UNFIT = re.compile(r"fuck|shit|cunt|nigg|whore|slut|rape|penis|vagina|porn|bitch|fagg|sex|breast|genital|excre|copul|"
                   r"\barse")
SHARES = (0.40, 0.27, 0.15, 0.18)      # of the draws: plain sentences, examples, definitions, words


def held_out_sentences() -> list[str]:
    """The sentences that models are tested on, and never trained."""
    text = (resources.files("training") / "held_out.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def clips(wordnet: Path, seed: int) -> Iterator[str]:
    """Clips without end, none of them twice, none like a held-out sentence.

    Args:
        wordnet: folder of WordNet's data.noun, data.verb, data.adj and data.adv (Debian's wordnet-base).
    """
    rng = random.Random(seed)
    examples, definitions = glosses(wordnet)
    words, weights = spoken_words()
    sources = (lambda: several_sentences(rng), lambda: rng.choice(examples), lambda: rng.choice(definitions),
               lambda: (" ".join(rng.choices(words, cum_weights=weights, k=rng.randint(1, 8)))
                        + rng.choice([".", "", "?", "!"])))
    kept_out, seen = word_runs(held_out_sentences()), set()
    while True:
        [draw] = rng.choices(sources, SHARES)
        clip = draw()
        if (SHORTEST <= len(clip) <= LONGEST and clip not in seen and not UNFIT.search(clip)
                and kept_out.isdisjoint(word_runs([clip]))):
            seen.add(clip)
            yield clip


def several_sentences(rng: random.Random) -> str:
    return " ".join(plain_sentence(rng) for _ in range(rng.choice((1, 1, 1, 1, 2, 3))))


def word_runs(sentences: Iterable[str]) -> set[tuple[str, ...]]:
    """Every run of ``SHARED_WORDS`` words, and short sentences whole."""
    runs = set()
    for sentence in sentences:
        words = re.findall(r"[a-z']+", sentence.lower())
        runs.update(tuple(words[i:i + SHARED_WORDS]) for i in range(max(1, len(words) - SHARED_WORDS + 1)))
    return runs


def glosses(wordnet: Path) -> tuple[list[str], list[str]]:
    """Example sentences and definitions of WordNet that our letters can write.

    A gloss is the part after "|": definitions, then examples in quotes, parted by semicolons.
    """
    examples: set[str] = set()
    definitions: set[str] = set()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (wordnet / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):
                continue
            gloss = line.partition("|")[2]
            examples.update(cleaned(example) for example in re.findall(r'"([^"]+)"', gloss))
            definitions.update(cleaned(piece) for piece in re.sub(r'"[^"]*"?', "", gloss).split(";"))
    return sorted(examples - {""}), sorted(definitions - {""})


def cleaned(text: str) -> str:
    """Text as the networks read it, or nothing when it has figures, brackets, foreign letters or abbreviations."""
    text = re.sub(r"\s*\([^)]*\)", "", text).strip().replace("`", "'")
    if re.search(r"[^A-Za-z',.?!;: -]|[A-Z]{2}|\b[A-Za-z]\.", text) or len(text) < SHORTEST:
        return ""
    return NORMALISERS["english"](text.strip(" ,;:'-"))


def spoken_words() -> tuple[list[str], list[float]]:
    """The 40 000 most frequent English words of plain letters, and the running sum of weights that flatten
    their frequencies."""
    from wordfreq import get_frequency_dict

    frequent = sorted(get_frequency_dict("en").items(), key=lambda item: (-item[1], item[0]))[:40000]
    chosen = [(word, frequency ** 0.3) for word, frequency in frequent if re.fullmatch("[a-z]{2,}", word)]
    return [word for word, _ in chosen], list(accumulate(weight for _, weight in chosen))


def write_text(path: Path, wordnet: Path, count: int, seed: int) -> None:
    """``count`` clips, one a line."""
    with replacing(path) as target:
        target.write_text("".join(f"{clip}\n" for clip in islice(clips(wordnet, seed), count)), encoding="utf-8")


def read_text(path: Path, count: int) -> list[str]:
    """The clips that ``write_text`` left.

    Raises:
        UserError: they are not ``count``, or one of them is like a sentence that is held out by now.
    """
    texts = path.read_text(encoding="utf-8").splitlines()
    if len(texts) != count:
        raise UserError(f"{path} holds {len(texts)} clips and this run is to have {count}: give --hours as before, or "
                        "another --out")
    if not word_runs(held_out_sentences()).isdisjoint(word_runs(texts)):
        raise UserError(f"{path} holds a sentence that is held out of training by now: begin anew in another --out")
    return texts
