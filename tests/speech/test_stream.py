"""Test streams and parallel chunks of speech: delivery, order, the times of words, and limits on the text."""

import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from io import BytesIO

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

import ane
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.speech.chunks import Chunk, RenderedChunk
from ane.speech.request import SpeechContext, TextLimits, TextUsage
from ane.speech.stream import BLOCK_SECONDS, Speech, Stream
from ane.speech.words import SpokenWord, delivered_words, interpolate_words, matched_words
from ane.system.errors import UserError
from ane.text import Lexicon, LexiconEntry, read_passages
from tests.refusals import assert_refused
from tests.server.server_process import wait_until

RATE = 24000
SOUND = (0.5 * np.sin(np.arange(RATE) / 40)).astype(np.float32)


def test_speech_is_saved_in_the_format_of_a_suffix_and_shown_as_a_player_in_a_notebook(tmp_path):
    speech = Speech(SOUND, RATE, ["Hello."], {"seed": 1, "voice": "ann", "codes": 40}, elapsed=0.5)
    assert (speech.seconds, speech.real_time_factor) == (1.0, 0.5)
    speech.save(str(tmp_path / "hello.flac"))
    assert speech._repr_html_().startswith("<audio controls")
    shown = BytesIO(b64decode(speech._repr_html_().partition("base64,")[2].partition('"')[0]))
    assert soundfile.info(tmp_path / "hello.flac").format == "FLAC"
    for file in (tmp_path / "hello.flac", shown):
        audio, rate = soundfile.read(file)
        assert rate == RATE
        np.testing.assert_allclose(audio, SOUND, atol=1e-4)


@pytest.mark.parametrize(("bundle", "voices"), [("demo", ["heart", "michael", "random"]), ("heart", [])])
def test_a_speaker_names_its_voices(bundle, voices, monkeypatch, tmp_path):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    assert ane.load(bundle, "torch").voices == voices


def stream_of(
    *chunks: Chunk,
    count: int = 1,
    sound: np.ndarray = SOUND,
    alternatives: Sequence[np.ndarray] = (),
    words: Sequence[SpokenWord] = (),
    batched: bool = False,
) -> Stream:
    """The stream of chunks that all have this sound, in so many pieces, and these facts."""

    def rendered() -> Iterator[RenderedChunk]:
        for chunk in chunks:
            made = RenderedChunk(chunk, iter(np.array_split(sound, count)), alternatives=alternatives)
            made.report(words, {"frames": 1})
            yield made

    return Stream(rendered(), chunks, {"frames": 0}, RATE, True, SpeechContext(batched=batched))


def sound_of(chunk: Chunk, count: int = 1, sound: np.ndarray = SOUND) -> list[np.ndarray]:
    return list(stream_of(chunk, count=count, sound=sound))


def test_silence_lies_around_the_sound_and_the_first_piece_is_not_silence_alone():
    assert sound_of(Chunk("a"))[0].base is SOUND, "plain sound is not touched"
    pieces = sound_of(Chunk("a", before=0.5, after=0.25), 4)
    np.testing.assert_array_equal(
        np.concatenate(pieces), np.concatenate((np.zeros(12000), SOUND, np.zeros(6000))).astype(np.float32)
    )
    assert pieces[0].any()
    assert sum(map(len, sound_of(Chunk("a", before=0.1, after=0.1), sound=SOUND[:0]))) == 4800, "around no sound"
    assert [len(piece) for piece in sound_of(Chunk("a", before=2.5 * BLOCK_SECONDS))] == [
        RATE,
        RATE,
        RATE // 2 + len(SOUND),
    ], "in blocks, which share their memory"


def test_gain_is_a_factor_and_clips():
    np.testing.assert_allclose(sound_of(Chunk("a", gain=0.5))[0], SOUND / 2, atol=1e-7)
    assert np.abs(sound_of(Chunk("a", gain=4), sound=SOUND * 0.9)[0]).max() == 1


@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_speed_changes_the_length_alike_in_pieces_and_whole(pieces):
    chunk = Chunk("a", speed=1.25, before=0.1, gain=0.7)
    whole = np.concatenate(sound_of(chunk))
    assert len(whole) == RATE * 0.8 + 2400
    np.testing.assert_array_equal(np.concatenate(sound_of(chunk, pieces)), whole)


def test_words_and_alternatives_are_delivered_as_the_sound_is():
    words = [SpokenWord("a", 0.25, 0.5)]
    chunk = Chunk("a", speed=2.0, before=1.0)
    speech = stream_of(chunk, chunk, alternatives=[SOUND / 2], words=words, batched=True).collect()
    assert speech.words == [SpokenWord("a", 1.125, 1.25), SpokenWord("a", 2.625, 2.75)]
    assert [len(other) for other in speech.alternatives] == [len(speech.audio)] == [72000]
    assert speech.facts == {"frames": 2}


def test_words_of_whole_speech_end_within_their_chunk():
    speech = stream_of(Chunk("a"), Chunk("b"), words=[SpokenWord("a", 0.5, 1.5)], batched=True).collect()
    assert [(word.start, word.end) for word in speech.words] == [(0.5, 1.0), (1.5, 2.0)]


def test_closing_closes_the_source_and_the_sound_of_its_chunk():
    closed = []

    def sound() -> Iterator[np.ndarray]:
        try:
            yield from np.array_split(SOUND, 3)
        finally:
            closed.append("sound")

    def source() -> Iterator[RenderedChunk]:
        try:
            yield RenderedChunk(Chunk("a"), sound())
        finally:
            closed.append("source")

    stream = Stream(source(), [Chunk("a")], {}, RATE, True, SpeechContext())
    next(stream)
    stream.close()
    assert closed == ["sound", "source"]


def spoken(text: str) -> list[tuple[str, tuple[float, float]]]:
    """Each word lasts a second."""
    return [(word, (float(index), index + 1.0)) for index, word in enumerate(text.split())]


@pytest.mark.parametrize(
    ("text", "read", "times"),
    [
        ("Hello, world.", "hello world", [(0, 1), (1, 2)]),
        ("It cost $5 today.", "it cost five dollars today", [(0, 1), (1, 2), (2, 4), (4, 5)]),
        ("Dr. Lee didn't.", "doctor lee didn't", [(0, 1), (1, 2), (2, 3)]),
        ("Well — yes.", "well yes", [(0, 1), (1, 1), (1, 2)]),
        ("Go on.", "go on and on", [(0, 1), (1, 4)]),
        ("Say {HH AH0 L OW1}, now.", "say HHAH0LOW1 now", [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_a_word_has_the_time_of_what_is_read_for_it(text, read, times):
    words = matched_words(text, spoken(read))
    assert [(word.start, word.end) for word in words] == times
    assert not any(word.estimated for word in words)


def test_words_that_are_read_as_others_in_common_share_their_time_and_say_so():
    words = matched_words("on 3 May 2024", spoken("on the third of may twenty twenty-four"))
    assert [word.word for word in words] == ["on", "3", "May", "2024"]
    assert (words[0].end, words[-1].end) == (1, 7)
    assert matched_words("1 2", [("twelve", (0.0, 4.0))])[1].estimated


@given(st.text(max_size=60), st.lists(st.text("abc ", min_size=1, max_size=5), max_size=12))
def test_every_written_word_has_a_time_in_order(text, read):
    words = matched_words(text, spoken(" ".join(read)))
    if words:
        assert "".join("".join(word.word for word in words).split()) == "".join(text.split())
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)


def test_times_follow_trimming_speed_and_the_pause_before_a_chunk():
    [word] = delivered_words(
        list(interpolate_words(["word"], (1.0, 2.0))), removed=0.4, seconds=1.2, offset=10.0, speed=2.0, before=0.5
    )
    assert (word.start, word.end) == (pytest.approx(10.8), pytest.approx(11.2))


@pytest.fixture(scope="module")
def speaker() -> "ane.Speaker":
    return ane.load("heart", threads=1)


def spent(*texts: str, lexicon: Lexicon | None = None, **budget: float) -> TextUsage:
    usage = TextUsage(TextLimits(**budget))
    for text in texts:
        usage.add(text, read_passages(text, lexicon))
    return usage


@pytest.mark.parametrize(
    "texts",
    [["a" + " [pause:60s]" * 10], ["a [pause:60s]"] * 10, ["<speak>a" + "<break time='60s'/>" * 10 + "</speak>"]],
)
def test_pauses_are_bounded_together(texts):
    assert spent(*texts).silence == 600
    assert_refused("asks for 601 s of silence, and one request may have at most 600 s", spent, *texts, "b [pause:1s]")


def test_a_lexicon_may_not_make_a_text_many_times_as_long():
    assert spent("a " * 20, lexicon=Lexicon([LexiconEntry("a", "boat " * 40)])).spelled > 4000
    assert_refused(
        "the lexicon turns 4000 characters into 410000, and may make at most 4 times as many",
        lambda: spent("a " * 2000, lexicon=Lexicon([LexiconEntry("a", "boat " * 40 + "home")])),
    )


def test_a_request_of_every_form_has_the_budget(speaker):
    pauses = "A boat." + " [pause:60s]" * 10
    for text, speak in (
        (pauses + "[pause:1s]", speaker.speak),
        (pauses + "[pause:1s]", speaker.stream),
        ([pauses, "[pause:1s] Home."], lambda texts: list(speaker.feed(texts))),
    ):
        assert_refused("601 s of silence", speak, text)
    assert len(list(speaker.speak_all(["A boat." + "[pause:60s]" * 6] * 2))) == 2


def test_words_that_are_awaited_do_not_count_pauses_twice(speaker):
    run = SpeechContext(usage=TextUsage(TextLimits(silence=5)))
    texts = ["[pause:2s]. ", "\n[pause:2s]. ", "\nA boat is here. "]
    sound = np.concatenate(list(speaker.feed_of(texts, speaker.request("", ssml=False), run)))
    assert 4 * RATE < len(sound) < 7 * RATE
    assert run.usage.silence == 4


def test_silence_comes_in_blocks_that_join_to_the_whole(speaker):
    text = "[pause:2.5s] A boat. [pause:3.5s] Home. [pause:4s]"
    pieces = list(speaker.stream(text))
    assert max(map(len, pieces)) < 4 * RATE
    assert sum(not piece.any() and len(piece) == BLOCK_SECONDS * RATE for piece in pieces) >= 7
    whole = speaker.speak(text)
    assert whole.seconds == pytest.approx(sum(map(len, pieces)) / RATE, abs=0.02)
    assert whole.words[0].start > 2.5


TEXT = " ".join(
    (
        "The wind blew over the hill all night, and it rained in the valley until the road was under water.",
        "She counted eleven boats in the harbour before breakfast, and only three of them came back at noon.",
        "Our train leaves at a quarter past nine from the other platform, if nobody has told the driver otherwise.",
        "He wrote the letter twice and burned it once, because the first of them had been much too friendly.",
        "Nobody had told the gardener about the frost, so the oranges stayed outside, and we lost all of them.",
    )
)


@pytest.fixture
def two(monkeypatch) -> Iterator[HibariSynthesizer]:
    """A speaker with two threads, which leaves no thread behind."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    yield ane.load(threads=2)
    assert not chunk_threads()


def chunk_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("chunk")]


def begun(speaker: HibariSynthesizer, monkeypatch, fails: np.ndarray | None = None) -> list[str]:
    """The list to which the thread of each chunk is added as its work begins. Work on the phonemes ``fails`` fails."""
    run, found = speaker.backend.run, []

    def noted(stage: str, **inputs: np.ndarray) -> np.ndarray:
        if stage == "text":
            found.append(threading.current_thread().name)
            if fails is not None and np.array_equal(inputs["ids"][0, : len(fails)], fails):
                raise UserError("no memory")
        return run(stage, **inputs)

    monkeypatch.setattr(speaker.backend, "run", noted)
    return found


@pytest.mark.parametrize("way", ["speak", "stream", "speak_in_chunks"])
def test_two_threads_change_no_sound_no_fact_and_no_order(speaker, two, way):
    def spoken(speaker: HibariSynthesizer):
        made = getattr(speaker, way)(TEXT, seed=4)
        return made if way == "speak" else made.collect()

    first, second = spoken(speaker), spoken(two)
    assert len(first.chunks) >= 4
    np.testing.assert_array_equal(first.audio, second.audio)
    assert (first.words, first.facts, first.chunks) == (second.words, second.facts, second.chunks)
    assert all(map(np.array_equal, first.pitch, second.pitch))
    assert set(first.seconds_by_phase) == set(second.seconds_by_phase)


def test_texts_that_are_spoken_together_keep_their_order(speaker, two):
    texts = ["Yes.", TEXT, "No, never."]
    for text, speech in zip(texts, two.speak_all(texts, seed=1), strict=True):
        np.testing.assert_array_equal(speech.audio, speaker.speak(text, seed=1).audio)


def test_both_threads_work_and_progress_is_told_in_order(two, monkeypatch):
    threads, told = begun(two, monkeypatch), []
    speech = two.speak(TEXT, progress=lambda phase, done, total, note: told.append((done, total)))
    assert len({*threads}) == 2
    assert told == [(done, len(speech.chunks)) for done in range(1, len(speech.chunks) + 1)]


def test_a_slow_reader_finds_one_chunk_made_ahead_and_no_more(two, monkeypatch):
    found = begun(two, monkeypatch)
    stream = two.stream(TEXT)
    assert not found, "nothing is made before somebody reads"
    next(stream)
    wait_until(lambda: len(found) >= 2)
    time.sleep(0.5)  # time for a third chunk to begin, if one wrongly did
    stream.close()
    assert len(found) == 2


def test_leaving_early_ends_the_work(two, monkeypatch):
    found = begun(two, monkeypatch)
    stream = two.speak_in_chunks(TEXT)
    next(stream)
    stream.close()
    made = len(found)
    assert made <= 3
    assert not chunk_threads()
    time.sleep(0.2)
    assert len(found) == made


def test_an_error_comes_after_the_sound_before_it(speaker, two, monkeypatch):
    chunks = two.chunks(two.request(TEXT), SpeechContext())
    begun(two, monkeypatch, fails=chunks[2].ids)
    heard = []
    with pytest.raises(UserError, match="no memory"):
        heard.extend(two.stream(TEXT, seed=2))  # the chunks of audio before the error stay in the list
    heard, before = np.concatenate(heard), np.concatenate(list(speaker.stream(TEXT, seed=2)))
    np.testing.assert_array_equal(heard, before[: len(heard)])
    assert len(heard) >= speaker.speak(chunks[0].text, seed=2).audio.size
