"""Write the texts that the teachers speak: plain sentences, dictionary examples, definitions, and random words.

All texts are in lower case and have numbers spelled out, like the output of the English normaliser.
"""

import random
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from itertools import accumulate, islice
from pathlib import Path

from ane.system.errors import UserError
from ane.system.files import replacing
from ane.text import NORMALISERS

MIN_CHARACTERS, MAX_CHARACTERS = 3, 130
SHARED_WORDS = 5  # a text that shares this many successive words with a held-out sentence is not used
UNFIT = re.compile(
    r"fuck|shit|cunt|nigg|whore|slut|rape|penis|vagina|porn|bitch|fagg|sex|breast|genital|excre|copul|"
    r"\barse"
)
GRAMMAR: dict[str, str] = tomllib.loads(Path(__file__).with_name("grammar.toml").read_text(encoding="utf-8"))
RULES = {name: options.split("|") for name, options in GRAMMAR.items()}
SHARES = (0.40, 0.27, 0.15, 0.18)  # probabilities of plain sentences, examples, definitions and random words


def held_out_sentences() -> list[str]:
    """Return the sentences on which quality is measured.

    No training text shares ``SHARED_WORDS`` successive words with one of these sentences.
    """
    text = (resources.files("training") / "held_out.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def training_texts(wordnet: Path, seed: int) -> Iterator[str]:
    """Yield different texts without end. None shares ``SHARED_WORDS`` successive words with a held-out sentence.

    Args:
        wordnet: Folder with WordNet's data.noun, data.verb, data.adj and data.adv (Debian's wordnet-base).
        seed: Seed of the random choices.
    """
    rng = random.Random(seed)
    examples, definitions = glosses(wordnet)
    words, weights = spoken_words()
    sources = (
        lambda: " ".join(plain_sentence(rng) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))),
        lambda: rng.choice(examples),
        lambda: rng.choice(definitions),
        lambda: (
            " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(1, 8))) + rng.choice([".", "", "?", "!"])
        ),
    )
    held_out, seen = word_runs(held_out_sentences()), set()
    while True:
        [draw] = rng.choices(sources, SHARES)
        text = draw()
        if (
            MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS
            and text not in seen
            and not UNFIT.search(text)
            and held_out.isdisjoint(word_runs([text]))
        ):
            seen.add(text)
            yield text


def plain_sentence(rng: random.Random, rule: str = "sentence", depth: int = 0) -> str:
    """Expand a rule of the grammar at random. From a depth of 4 on, no further statement is nested."""
    option = rng.choice(RULES[rule])
    while depth > 3 and "<statement>" in option:
        option = rng.choice(RULES[rule])
    return re.sub(r"<(\w+)>", lambda match: plain_sentence(rng, match[1], depth + 1), option)


def word_runs(sentences: Iterable[str]) -> set[tuple[str, ...]]:
    """Return all runs of ``SHARED_WORDS`` successive words in the sentences. A shorter sentence is one run."""
    runs = set()
    for sentence in sentences:
        words = re.findall(r"[a-z']+", sentence.lower())
        runs.update(tuple(words[i : i + SHARED_WORDS]) for i in range(max(1, len(words) - SHARED_WORDS + 1)))
    return runs


@cache
def glosses(wordnet: Path) -> tuple[list[str], list[str]]:
    """Read the example sentences and the definitions of WordNet that have only characters of the tokenizer.

    In WordNet's data files, the text after "|" has definitions, then examples in quotes, separated by semicolons.
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
    """Normalise a text. Return "" if it has digits, foreign letters or abbreviations. Text in brackets is removed."""
    text = re.sub(r"\s*\([^)]*\)", "", text).strip().replace("`", "'")
    if re.search(r"[^A-Za-z',.?!;: -]|[A-Z]{2}|\b[A-Za-z]\.", text) or len(text) < MIN_CHARACTERS:
        return ""
    return NORMALISERS["english"](text.strip(" ,;:'-"))


@cache
def spoken_words() -> tuple[list[str], list[float]]:
    """Return frequent English words, and the cumulative sums of the weights with which to draw them.

    The words have only the letters a to z, and are among the 40,000 most frequent words. A weight is
    frequency ** 0.3, so that rare words are drawn too.
    """
    from wordfreq import get_frequency_dict

    frequent = sorted(get_frequency_dict("en").items(), key=lambda item: (-item[1], item[0]))[:40000]
    chosen = [(word, frequency**0.3) for word, frequency in frequent if re.fullmatch("[a-z]{2,}", word)]
    return [word for word, _ in chosen], list(accumulate(weight for _, weight in chosen))


def texts_of_a_voice(path: Path, wordnet: Path, count: int, seed: int) -> list[str]:
    """Return the first ``count`` lines of the file at ``path``. If it has fewer lines, write ``count`` texts first.

    Raises:
        UserError: WordNet is not in the folder, or a line shares a run of words with a held-out sentence.
    """
    texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if len(texts) < count:
        if not (wordnet / "data.noun").exists():
            raise UserError(f"no WordNet in {wordnet}: install Debian's wordnet-base or give its folder with --wordnet")
        texts = list(islice(training_texts(wordnet, seed), count))
        with replacing(path) as target:
            target.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    if not word_runs(held_out_sentences()).isdisjoint(word_runs(texts)):
        raise UserError(f"{path} contains a held-out sentence: start again with another --output")
    return texts[:count]
