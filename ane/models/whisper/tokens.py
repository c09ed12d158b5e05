"""Convert text to Whisper's tokens and back, and apply the rules for special tokens and timestamps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers

from ane.models.whisper.languages import LANGUAGES
from ane.system.errors import UserError

VOCABULARIES = (51864, 51865, 51866)  # English only, multilingual, and large-v3 with one more language
TIMESTAMPS = 1501  # the last tokens, for 0.00 s, 0.02 s, … 30.00 s
SECONDS_PER_TIMESTAMP = 0.02
FRAMES_PER_TIMESTAMP = 2  # 0.02 s in mel frames

# Symbols for sounds or for formatting. People do not say them, so their tokens are suppressed.
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
MUSIC = tuple("♩♪♫♬♭♮♯")  # symbols of several tokens, of which the first is suppressed


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of a vocabulary's special tokens, which follow the text tokens."""

    end: int  # the token after every sequence, and the lowest special id
    start: int  # "startoftranscript"
    languages: tuple[str, ...]  # codes, in the order of their ids from ``start`` + 1
    translate: int
    transcribe: int
    language_model: int
    previous: int  # precedes the text of earlier windows
    no_speech: int  # a high probability after ``start`` means that nobody speaks
    no_timestamps: int
    timestamps: int  # the id of 0.00 s, the first of 1501
    multilingual: bool  # whether the start sequence names a language and a task

    @classmethod
    def of(cls, vocabulary: int) -> "SpecialTokens":
        """Return the special tokens for a vocabulary size.

        Raises:
            UserError: No Whisper model has such a vocabulary.
        """
        if vocabulary not in VOCABULARIES:
            raise UserError(
                f"a vocabulary of {vocabulary} tokens is not Whisper's: it has "
                f"{', '.join(map(str, VOCABULARIES[:-1]))} or {VOCABULARIES[-1]}"
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
        """Return the id of a language.

        Raises:
            UserError: The code is unknown.
        """
        if code not in self.languages:
            raise UserError(f"language must be one of {', '.join(self.languages)}, got {code!r}", "language")
        return self.start + 1 + self.languages.index(code)

    def start_sequence(self, language: str, task: str = "transcribe", timestamps: bool = True) -> tuple[int, ...]:
        """Return the tokens before a transcript: start, and for a multilingual model language and task."""
        sequence = [self.start]
        if self.multilingual:
            sequence += [self.language(language), {"transcribe": self.transcribe, "translate": self.translate}[task]]
        return (*sequence, *(() if timestamps else (self.no_timestamps,)))


class WhisperTokenizer:
    """Convert text to ids and back, without special tokens. Decoding skips ids from ``end`` on.

    Args:
        json: A tokenizer.json of Hugging Face ``tokenizers``. Only its BPE model is used.
        end: The lowest special id.

    Raises:
        UserError: ``json`` is not a byte-level BPE.
    """

    def __init__(self, json: str, end: int):
        try:
            source = tokenizers.Tokenizer.from_str(json)
        except Exception as error:  # the library raises nothing more specific
            raise UserError(f"the tokenizer cannot be read ({error}): import the model again") from error
        if not isinstance(source.model, tokenizers.models.BPE):
            raise UserError("the tokenizer is not byte-level BPE, as Whisper's is: import the model again")
        self.end = end
        self._bpe = tokenizers.Tokenizer(source.model)  # special tokens in a text stay text
        self._bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._bpe.decoder = tokenizers.decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self._bpe.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the tokens below ``end``. Bytes that are not UTF-8 become U+FFFD."""
        return self._bpe.decode([token for token in tokens if token < self.end], skip_special_tokens=False)

    def blank(self) -> tuple[int, ...]:
        """Return the tokens that must not begin a transcript: a lone space, and the end."""
        return (*self.encode(" "), self.end)

    def non_speech(self) -> tuple[int, ...]:
        """Return the tokens of ``SYMBOLS`` and ``MUSIC``, with and without a space before them, sorted.

        A hyphen or an apostrophe is suppressed only after a space, not inside a word.
        """
        found = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in (*SYMBOLS, *MUSIC):
            for tokens in (self.encode(symbol), self.encode(" " + symbol)):
                if len(tokens) == 1 or symbol in MUSIC:
                    found.add(tokens[0])
        return tuple(sorted(found))


def suppressed_tokens(special: SpecialTokens, tokens: Sequence[int]) -> tuple[int, ...]:
    """Return ``tokens`` and the special tokens that are never sampled, sorted."""
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
    """A segment's tokens, and its times in seconds from the beginning of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def split_segments(
    tokens: Sequence[int], first_timestamp: int, frames: int, seconds_per_frame: float
) -> tuple[list[TimedTokens], int]:
    """Split a window of ``frames`` mel frames into segments. Return them, and the frames until the next window begins.

    Two timestamps in a row end a segment and begin the next one. If the tokens end with such a pair, or with text after
    it, the next window begins at the last pair. A single timestamp at the end means that this window has no more text.
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
    """Return whether the tokens end with one timestamp after text. Then the window has no more text."""
    return [token >= first_timestamp for token in tokens[-2:]] == [False, True]


@dataclass(frozen=True)
class TokenRules:
    """The rules for the logits of a sequence."""

    special: SpecialTokens
    suppressed: tuple[int, ...] = ()  # tokens that are never sampled
    blank: tuple[int, ...] = ()  # tokens that are not sampled first
    timestamps: bool = True  # whether timestamps enclose the text
    max_initial_timestamp: int | None = 50  # index of the latest first timestamp (50 is 1.0 s). None allows any

    def apply(self, logits: np.ndarray, sampled: Sequence[int]) -> None:
        """Set the logits (V,) float32 of all tokens that must not follow ``sampled`` to −∞, in place."""
        if not sampled:
            logits[list(self.blank)] = -np.inf
        logits[list(self.suppressed)] = -np.inf
        if self.timestamps:
            self._apply_timestamp_rules(logits, sampled)

    def _apply_timestamp_rules(self, logits: np.ndarray, sampled: Sequence[int]) -> None:
        """Keep timestamps in order: one ends a segment, the next begins another, and times never decrease.

        The first token is a timestamp. If all timestamps together are likelier than every text token, only timestamps
        are allowed.
        """
        first = self.special.timestamps
        logits[self.special.no_timestamps] = -np.inf
        after_timestamp = len(sampled) >= 1 and sampled[-1] >= first
        after_pair = after_timestamp and (len(sampled) < 2 or sampled[-2] >= first)
        if after_pair:
            logits[first:] = -np.inf  # text follows a pair, and the first timestamp
        elif after_timestamp:
            logits[: self.special.end] = -np.inf  # after a segment, the next one begins, or all ends
        latest = next((token for token in reversed(sampled) if token >= first), None)
        if latest is not None:
            # a segment ends after it begins, and may begin where the one before it ends
            logits[first : latest if after_timestamp and not after_pair else latest + 1] = -np.inf
        if not sampled:
            logits[:first] = -np.inf
            if self.max_initial_timestamp is not None:
                logits[first + self.max_initial_timestamp + 1 :] = -np.inf
        if log_sum_exp(logits[first:]) > logits[:first].max():
            logits[:first] = -np.inf


def log_sum_exp(logits: np.ndarray) -> float:
    """Return ln Σ exp(logits) of (n,) float32, computed in float64. If all logits are −∞, so is the result."""
    highest = float(logits.max())
    if highest == -np.inf:
        return -np.inf
    return highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
