"""Convert text to Whisper's tokens and back, and apply the rules for special tokens and timestamps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers

from ane.models.whisper.languages import LANGUAGES
from ane.system.errors import UserError

VOCABULARIES = (51864, 51865, 51866)  # sizes: English only, multilingual, and large-v3, which has one more language
TIMESTAMPS = 1501  # number of timestamps, which are the last tokens: 0.00 s, 0.02 s, … 30.00 s
SECONDS_PER_TIMESTAMP = 0.02
FRAMES_PER_TIMESTAMP = 2  # mel frames between two timestamps, which are 0.02 s apart

# Symbols for sounds and for formatting. Their tokens are suppressed, because nobody says them.
SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    "<<",
    ">>",
    "<<<",
    ">>>",
    "--",
    "---",
    "-(",
    "-[",
    "('",
    '("',
    "((",
    "))",
    "(((",
    ")))",
    "[[",
    "]]",
    "{{",
    "}}",
    "♪♪",
    "♪♪♪",
)
MUSIC = tuple("♩♪♫♬♭♮♯")  # symbols that take several tokens, of which the first is suppressed


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of a vocabulary's special tokens, which follow the text tokens."""

    end: int  # the token that ends a sequence; it has the lowest special id
    start: int  # "startoftranscript"
    languages: tuple[str, ...]  # codes of the languages, whose ids begin at ``start`` + 1
    translate: int
    transcribe: int
    language_model: int
    previous: int  # the token before the text of earlier windows
    no_speech: int  # the token whose probability after ``start`` is high if nobody speaks
    no_timestamps: int
    timestamps: int  # id of the first timestamp, 0.00 s
    multilingual: bool  # whether the start sequence names a language and a task

    @classmethod
    def of(cls, vocabulary: int) -> "SpecialTokens":
        """Return the special tokens of a vocabulary of this size.

        Raises:
            UserError: No Whisper model has a vocabulary of this size.
        """
        if vocabulary not in VOCABULARIES:
            raise UserError(
                f"a vocabulary of {vocabulary} tokens is not Whisper's, which has "
                f"{', '.join(map(str, VOCABULARIES[:-1]))} or {VOCABULARIES[-1]} tokens"
            )
        multilingual = vocabulary >= 51865
        end = 50257 if multilingual else 50256
        languages = tuple(LANGUAGES)[: vocabulary - 51765 - multilingual]
        task = end + 2 + len(languages)
        return cls(
            end,
            end + 1,
            languages,
            translate=task,
            transcribe=task + 1,
            language_model=task + 2,
            previous=task + 3,
            no_speech=task + 4,
            no_timestamps=task + 5,
            timestamps=task + 6,
            multilingual=multilingual,
        )

    def language(self, code: str) -> int:
        """Return the id of a language's token.

        Raises:
            UserError: The language code is unknown.
        """
        if code not in self.languages:
            raise UserError(f"language must be one of {', '.join(self.languages)}, got {code!r}", "language")
        return self.start + 1 + self.languages.index(code)

    def start_sequence(self, language: str, task: str = "transcribe", timestamps: bool = True) -> tuple[int, ...]:
        """Return the tokens before a transcript: the start token and, for a multilingual model, language and task."""
        sequence = [self.start]
        if self.multilingual:
            sequence += [self.language(language), {"transcribe": self.transcribe, "translate": self.translate}[task]]
        return (*sequence, *(() if timestamps else (self.no_timestamps,)))


class WhisperTokenizer:
    """Converts text to ids and back, without special tokens. Decoding skips ids that are not below ``end``.

    Args:
        json: Content of a tokenizer.json of Hugging Face's ``tokenizers``. Only its BPE model is used.
        end: Id of the end token, which is the lowest special id.

    Raises:
        UserError: ``json`` is not a byte-level BPE.
    """

    def __init__(self, json: str, end: int):
        try:
            source = tokenizers.Tokenizer.from_str(json)
        except Exception as error:  # the library raises nothing more specific
            raise UserError(f"the tokenizer cannot be read ({error}): import the model again") from error
        if not isinstance(source.model, tokenizers.models.BPE):
            raise UserError("the tokenizer is not a byte-level BPE like Whisper's: import the model again")
        self.end = end
        self._bpe = tokenizers.Tokenizer(
            source.model
        )  # without special tokens, so that their names in a text are read as text
        self._bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._bpe.decoder = tokenizers.decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """Convert a text to ids."""
        return self._bpe.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Convert ids to text, and skip ids that are not below ``end``. Bytes that are not UTF-8 become U+FFFD."""
        return self._bpe.decode([token for token in tokens if token < self.end], skip_special_tokens=False)

    def blank(self) -> tuple[int, ...]:
        """Return the tokens that must not begin a transcript: a single space, and the end token."""
        return (*self.encode(" "), self.end)

    def non_speech(self) -> tuple[int, ...]:
        """Return the tokens of ``SYMBOLS`` and ``MUSIC``, with and without a space before them, in ascending order.

        A hyphen and an apostrophe are suppressed only after a space, because they can also be inside a word.
        """
        found = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in (*SYMBOLS, *MUSIC):
            for tokens in (self.encode(symbol), self.encode(" " + symbol)):
                if len(tokens) == 1 or symbol in MUSIC:
                    found.add(tokens[0])
        return tuple(sorted(found))


def suppressed_tokens(special: SpecialTokens, tokens: Sequence[int]) -> tuple[int, ...]:
    """Return ``tokens`` and the special tokens that are never sampled, in ascending order."""
    return tuple(
        sorted(
            {
                *tokens,
                special.transcribe,
                special.translate,
                special.start,
                special.previous,
                special.language_model,
                special.no_speech,
            }
        )
    )


@dataclass(frozen=True)
class TimedTokens:
    """The tokens of a segment, and its start and end in seconds from the beginning of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def split_segments(
    tokens: Sequence[int], first_timestamp: int, frames: int, seconds_per_frame: float
) -> tuple[list[TimedTokens], int]:
    """Split the tokens of a window, which has ``frames`` mel frames, into segments.

    Two consecutive timestamps end a segment and begin the next one. If the tokens end with such a pair, or with text
    after the last pair, the next window begins at the last pair. A single timestamp at the end means that the rest of
    the window has no text, so the next window begins at its end.

    Returns:
        The segments, and the number of mel frames from the start of this window to the start of the next one.
    """
    is_timestamp = [token >= first_timestamp for token in tokens]
    pairs = [index for index in range(1, len(tokens)) if is_timestamp[index - 1] and is_timestamp[index]]
    single_end = ends_with_single_timestamp(tokens, first_timestamp)
    if not pairs:
        end = frames * seconds_per_frame
        last = next((token for token in reversed(tokens) if token >= first_timestamp), first_timestamp)
        if last != first_timestamp:
            end = (last - first_timestamp) * SECONDS_PER_TIMESTAMP
        return [TimedTokens(0.0, end, tuple(tokens))], frames
    segments, begin = [], 0
    for cut in [*pairs, len(tokens)] if single_end else pairs:
        part = tuple(tokens[begin:cut])
        start, end = ((token - first_timestamp) * SECONDS_PER_TIMESTAMP for token in (part[0], part[-1]))
        segments.append(TimedTokens(start, end, part))
        begin = cut
    if single_end:
        return segments, frames
    return segments, max(1, tokens[begin - 1] - first_timestamp) * FRAMES_PER_TIMESTAMP


def ends_with_single_timestamp(tokens: Sequence[int], first_timestamp: int) -> bool:
    """Return whether the tokens end with text and one timestamp, so that the rest of the window has no text."""
    return [token >= first_timestamp for token in tokens[-2:]] == [False, True]


@dataclass(frozen=True)
class TokenRules:
    """Rules that exclude tokens while a sequence is sampled."""

    special: SpecialTokens
    suppressed: tuple[int, ...] = ()  # tokens that are never sampled
    blank: tuple[int, ...] = ()  # tokens that must not be the first one
    timestamps: bool = True  # whether timestamps enclose the text of each segment
    max_initial_timestamp: int | None = (
        50  # largest index of a timestamp that may come first (50 is 1.0 s); None allows any
    )

    def apply(self, logits: np.ndarray, sampled: Sequence[int]) -> None:
        """Set logits (V,) float32 to −∞, in place, for all tokens that must not follow the tokens ``sampled``."""
        if not sampled:
            logits[list(self.blank)] = -np.inf
        logits[list(self.suppressed)] = -np.inf
        if self.timestamps:
            self._apply_timestamp_rules(logits, sampled)

    def _apply_timestamp_rules(self, logits: np.ndarray, sampled: Sequence[int]) -> None:
        """Exclude tokens so that timestamps come in pairs and never decrease.

        The first token is a timestamp. After that, one timestamp ends a segment, and the next one begins another. If
        all timestamps together are likelier than any single text token, only timestamps are allowed.
        """
        first = self.special.timestamps
        logits[self.special.no_timestamps] = -np.inf
        after_timestamp = len(sampled) >= 1 and sampled[-1] >= first
        after_pair = after_timestamp and (len(sampled) < 2 or sampled[-2] >= first)
        if after_pair:
            logits[first:] = -np.inf  # after a pair, and after the first timestamp, text must follow
        elif after_timestamp:
            logits[: self.special.end] = -np.inf  # after a segment's end, the next segment begins, or the sequence ends
        latest = next((token for token in reversed(sampled) if token >= first), None)
        if latest is not None:
            # A segment must end later than it begins. It may begin where the segment before it ends.
            logits[first : latest if after_timestamp and not after_pair else latest + 1] = -np.inf
        if not sampled:
            logits[:first] = -np.inf
            if self.max_initial_timestamp is not None:
                logits[first + self.max_initial_timestamp + 1 :] = -np.inf
        if log_sum_exp(logits[first:]) > logits[:first].max():
            logits[:first] = -np.inf


def log_sum_exp(logits: np.ndarray) -> float:
    """Compute ln Σ exp(logits) for logits (n,) float32 in float64. If all logits are −∞, the result is −∞."""
    highest = float(logits.max())
    if highest == -np.inf:
        return -np.inf
    return highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
