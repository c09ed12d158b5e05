"""Which phonemes each letter of a word stands for, learned from a lexicon by expectation maximisation.

A letter stands for no phoneme, one or two, in order. The networks read letters, and the teacher states the times of
phonemes; with an alignment every letter has a time. Probabilities are learned without stress.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

MOST = 2                # phonemes of a letter
SWEEPS = 4
VOWEL_LETTERS = "aeiouy"
MISMATCH, DOUBLE = 0.05, 0.2    # first guess: of a vowel for a consonant's letter or the reverse; of two phonemes
UNSEEN = 1e-6           # probability of phonemes that a letter was not seen to stand for

Phonemes = tuple[int, ...]


class LetterAlignment:
    """Probabilities of a letter's phonemes.

    Args:
        lexicon: pairs of a word's letters and its phonemes, numbers without regard to stress. vowels: among them.
    """

    def __init__(self, lexicon: Sequence[tuple[str, Phonemes]], vowels: Collection[int]):
        self.vowels = frozenset(vowels)
        self.likely: dict[tuple[str, Phonemes], float] = {}
        fitting = [(letters, phones) for letters, phones in lexicon if is_alignable(letters, phones)]
        for _ in range(SWEEPS):
            counts: Counter[tuple[str, Phonemes]] = Counter()
            for letters, phones in fitting:
                counts.update(self.expected(letters, phones))
            totals: defaultdict[str, float] = defaultdict(float)
            for (letter, _), count in counts.items():
                totals[letter] += count
            self.likely = {pair: count / totals[pair[0]] for pair, count in counts.items()}

    def probability(self, letter: str, phones: Phonemes) -> float:
        if self.likely:
            return self.likely.get((letter, phones), UNSEEN)
        wrong = sum((phone in self.vowels) != (letter in VOWEL_LETTERS) for phone in phones)
        return MISMATCH ** wrong * (DOUBLE if len(phones) > 1 else 1.0)

    def expected(self, letters: str, phones: Phonemes) -> dict[tuple[str, Phonemes], float]:
        """How often each letter of the word is expected to stand for each of its phonemes (forward-backward)."""
        arcs = list(self.arcs(letters, phones))
        forward = [[0.0] * (len(phones) + 1) for _ in range(len(letters) + 1)]
        backward = [[0.0] * (len(phones) + 1) for _ in range(len(letters) + 1)]
        forward[0][0] = backward[-1][-1] = 1.0
        for place, begin, end, value in arcs:
            forward[place + 1][end] += forward[place][begin] * value
        for place, begin, end, value in reversed(arcs):
            backward[place][begin] += backward[place + 1][end] * value
        total, counts = forward[-1][-1], defaultdict(float)
        for place, begin, end, value in arcs:
            share = forward[place][begin] * value * backward[place + 1][end] / total
            counts[letters[place], phones[begin:end]] += share
        return counts

    def arcs(self, letters: str, phones: Phonemes) -> Iterator[tuple[int, int, int, float]]:
        """(index of the letter, first phoneme, one after the last, probability), by letter."""
        for place, letter in enumerate(letters):
            for begin in range(len(phones) + 1):
                for end in range(begin, min(begin + MOST, len(phones)) + 1):
                    yield place, begin, end, self.probability(letter, phones[begin:end])

    def align(self, letters: str, phones: Phonemes) -> list[int]:
        """How many phonemes each letter stands for: the likeliest alignment (Viterbi).

        Where the word has more than two phonemes a letter, as an abbreviation, they are shared out evenly.
        """
        if not is_alignable(letters, phones):
            return [(index + 1) * len(phones) // len(letters) - index * len(phones) // len(letters)
                    for index in range(len(letters))]
        best = [{0: (1.0, 0)}] + [{} for _ in letters]      # end → (probability, begin)
        for place, begin, end, value in self.arcs(letters, phones):
            if begin in best[place]:
                reached = best[place][begin][0] * value
                if reached > best[place + 1].get(end, (0.0, 0))[0]:
                    best[place + 1][end] = reached, begin
        counts, end = [], len(phones)
        for place in range(len(letters), 0, -1):
            begin = best[place][end][1]
            counts.append(end - begin)
            end = begin
        return counts[::-1]


def is_alignable(letters: str, phones: Phonemes) -> bool:
    return len(phones) <= MOST * len(letters)
