"""Compute when the words of a window are spoken, by the rules of openai-whisper (timing.py and tokenizer.py)."""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ane.backends.base import Backend
from ane.models.alignment import warping_path
from ane.models.whisper.alignment_heads import alignment_heads
from ane.models.whisper.networks import WhisperDecoderConfig
from ane.models.whisper.tokens import SECONDS_PER_TIMESTAMP, SpecialTokens, WhisperTokenizer
from ane.models.whisper.transcript import TranscriptSegment, TranscriptWord
from ane.system.errors import UserError

MEDIAN_WIDTH = 7  # width of the median filter along time, in encoder states
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages without spaces between words
PREPENDED = "\"'“¿([{-"  # punctuation that belongs to the word after it
APPENDED = "\"'.。,，!！?？:：”)]}、"  # punctuation that belongs to the word before it
SENTENCE_ENDS = ".。!！?？"
MAX_MEDIAN = 0.7  # seconds; the limits depend on the median duration of words, which counts as at most this
OUTSIDE = 0.5  # seconds by which a word may begin before its segment, or end after it


@dataclass(frozen=True)
class AlignedWord:
    """A word of a window and its times, in seconds from the beginning of the window."""

    word: str
    tokens: tuple[int, ...]
    start: float
    end: float
    probability: float

    @property
    def duration(self) -> float:
        """Duration in seconds."""
        return self.end - self.start


class WordAligner:
    """Finds when each word of a window is spoken, by running the decoder once more on the window's text.

    Raises:
        UserError: The backend cannot return attention scores.
    """

    def __init__(
        self, backend: Backend, config: WhisperDecoderConfig, special: SpecialTokens, tokenizer: WhisperTokenizer
    ):
        if not backend.returns_attention:
            raise UserError(f"the backend {backend.name} cannot time words: use backend=torch")
        self.backend, self.special, self.tokenizer = backend, special, tokenizer
        self.heads = alignment_heads(config.alignment_heads, config.n_text_layer, config.n_text_head)
        tables = backend.embeddings()
        self.token_table, self.position_table = tables["token"], tables["position"]

    def align(
        self, text: Sequence[int], states: np.ndarray, frames: int, language: str, task: str = "transcribe"
    ) -> list[AlignedWord]:
        """Compute the times of a window's words.

        Args:
            text: Tokens of the window's text, without timestamps.
            states: The encoder's states, (N, D) float32.
            frames: Number of the window's mel frames that have sound.
            language: Code of the language.
            task: Task with which the text was decoded, "transcribe" or "translate".
        """
        if not text:
            return []
        start = self.special.start_sequence(language, task, timestamps=False)
        tokens = [*start, *text, self.special.end]
        columns = (self.token_table[tokens] + self.position_table[: len(tokens)]).astype(np.float32)
        logits, scores = self.backend.align(columns, states, self.heads)
        first = len(start) - 1
        times = token_times(scores[:, :, : max(1, frames // 2)], first) * SECONDS_PER_TIMESTAMP
        probabilities = text_probabilities(logits[first : first + len(text), : self.special.end], text)
        words, begin = [], 0
        for word, part in split_words(self.tokenizer, text, language):
            end = begin + len(part)
            words.append(
                AlignedWord(
                    word, part, float(times[begin]), float(times[end]), float(np.mean(probabilities[begin:end]))
                )
            )
            begin = end
        return words


def text_probabilities(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """Compute the probability of each token, (T,) float32, from logits (T, V) float32."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    return np.exp(logits[np.arange(len(tokens)), list(tokens)]) / np.exp(logits).sum(axis=-1)


def split_words(tokenizer: WhisperTokenizer, tokens: Sequence[int], language: str) -> list[tuple[str, tuple[int, ...]]]:
    """Split tokens into words. A new word begins at every space and at every punctuation mark.

    In a language without spaces, a word is the shortest run of tokens that decodes to whole characters.
    """
    parts = split_characters(tokenizer, tokens)
    if language in UNSPACED:
        return parts
    words: list[tuple[str, tuple[int, ...]]] = []
    for text, part in parts:
        if not words or text.startswith(" ") or text.strip() in string.punctuation:
            words.append((text, part))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + part)
    return words


def split_characters(tokenizer: WhisperTokenizer, tokens: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    """Split tokens into the shortest runs that decode to whole characters.

    A run may contain U+FFFD, the mark of an incomplete character, if the whole text has U+FFFD at this position too.
    """
    whole, parts = tokenizer.decode(tokens), []
    current: tuple[int, ...] = ()
    offset = 0
    for token in tokens:
        current += (token,)
        text = tokenizer.decode(current)
        unknown = text.find("\ufffd")
        if unknown < 0 or whole[offset + unknown : offset + unknown + 1] == "\ufffd":
            parts.append((text, current))
            offset, current = offset + len(text), ()
    return [*parts, (tokenizer.decode(current), current)] if current else parts


def limit_sentence_ends(words: Sequence[AlignedWord], longest: float) -> list[AlignedWord]:
    """Shorten the marks that end sentences, and the words after these marks, to at most ``longest`` seconds."""
    limited = list(words)
    for index in range(1, len(words)):
        word = limited[index]
        if word.duration > longest:
            if word.word in SENTENCE_ENDS:
                limited[index] = replace(word, end=word.start + longest)
            elif limited[index - 1].word in SENTENCE_ENDS:
                limited[index] = replace(word, start=word.end - longest)
    return limited


def merge_punctuation(words: Sequence[AlignedWord]) -> list[AlignedWord]:
    """Add each punctuation mark to the text of the word before or after it, whose times and probability do not change.

    The mark stays in the list as a word without text and tokens.
    """
    merged = list(words)
    following = len(merged) - 1
    for index in range(len(merged) - 2, -1, -1):
        word = merged[index]
        if word.word.startswith(" ") and word.word.strip() in PREPENDED:
            _join(merged, following, word, merged[following], emptied=index)
        else:
            following = index
    previous = 0
    for index in range(1, len(merged)):
        word = merged[index]
        if not merged[previous].word.endswith(" ") and word.word in APPENDED:
            _join(merged, previous, merged[previous], word, emptied=index)
        else:
            previous = index
    return merged


def _join(words: list[AlignedWord], kept: int, first: AlignedWord, second: AlignedWord, emptied: int) -> None:
    words[kept] = replace(words[kept], word=first.word + second.word, tokens=first.tokens + second.tokens)
    words[emptied] = replace(words[emptied], word="", tokens=())


def add_words(
    segments: Sequence[TranscriptSegment],
    words: Sequence[AlignedWord],
    end_token: int,
    offset: float,
    last_speech: float,
) -> list[TranscriptSegment]:
    """Add the words to the segments of a window, and adapt the times of the segments to their words.

    Args:
        segments: Segments of the window.
        words: Words of all segments, from ``WordAligner.align``.
        end_token: Id of the end token. Tokens with lower ids are text.
        offset: Beginning of the window in seconds.
        last_speech: End of the last word before the window in seconds.
    """
    durations = [word.duration for word in words if word.duration]
    median = min(MAX_MEDIAN, float(np.median(durations)) if durations else 0.0)
    remaining = merge_punctuation(limit_sentence_ends(words, 2 * median) if durations else words)
    result = []
    for segment in segments:
        wanted, own = sum(token < end_token for token in segment.tokens), []
        while remaining and wanted > 0:
            word, *remaining = remaining
            wanted -= len(word.tokens)
            if word.word:
                own.append(
                    TranscriptWord(
                        word.word, round(offset + word.start, 2), round(offset + word.end, 2), word.probability
                    )
                )
        segment = (
            limit_segment_ends(replace(segment, words=tuple(own)), median, last_speech)
            if own
            else replace(segment, words=())
        )
        last_speech = segment.end if own else last_speech
        result.append(segment)
    return result


def limit_segment_ends(segment: TranscriptSegment, median: float, last_speech: float) -> TranscriptSegment:
    """Shorten the first words of a segment if they are too long, and take the segment's times from its words.

    But if the first word begins long before the segment, or the last word ends long after it, the segment keeps its
    time. The word is then cut.
    """
    first, *others = segment.words or ()
    longest = 2 * median
    pause = first.end - last_speech > 2 * longest
    long_pair = bool(others) and others[0].end - first.start > 2 * longest
    if pause and (first.end - first.start > longest or long_pair):
        if others and others[0].end - others[0].start > longest:
            boundary = max(others[0].end / 2, others[0].end - longest)
            first, others[0] = replace(first, end=boundary), replace(others[0], start=boundary)
        first = replace(first, start=max(0, first.end - longest))
    start, end = segment.start, segment.end
    if start < first.end and start - OUTSIDE > first.start:
        first = replace(first, start=max(0, min(first.end - median, start)))
    else:
        start = first.start
    words = [first, *others]
    last = words[-1]
    if end > last.start and end + OUTSIDE < last.end:
        words[-1] = replace(last, end=max(last.start + median, end))
    else:
        end = last.end
    return replace(
        segment,
        start=round(start, 2),
        end=round(end, 2),
        words=tuple(replace(word, start=round(word.start, 2), end=round(word.end, 2)) for word in words),
    )


def token_times(scores: np.ndarray, first: int) -> np.ndarray:
    """Find the encoder state at which each token begins. Returns (T − first − 1,) int64, never decreasing.

    The attention of a few heads moves along the sound with the text. Dynamic time warping finds the path with the most
    attention.

    Args:
        scores: Scores of the cross-attention before the softmax, (heads, T, N) float32, for states with sound.
        first: Index of the token that stands for the beginning of the text. The last token is the end token. No time is
            computed for it.
    """
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    deviation = weights.std(axis=1, keepdims=True)
    weights = (weights - weights.mean(axis=1, keepdims=True)) / np.where(deviation == 0, np.float32(1), deviation)
    matrix = np.mean([median_filter(head, MEDIAN_WIDTH) for head in weights], axis=0)
    rows, positions = warping_path(-matrix[first:-1].astype(np.float64))
    return positions[np.diff(rows, prepend=-1) > 0]


def median_filter(x: np.ndarray, width: int) -> np.ndarray:
    """Apply a median filter of odd ``width`` along the last axis of x (…, N). Beyond both ends, x is mirrored.

    If x is too short to be mirrored, it is returned unchanged, as in openai-whisper.
    """
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    return np.sort(windows, axis=-1)[..., half]
