"""Test the steps of a request: its candidates, memory and progress, the times of words, and texts of a single word."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

import ane
from ane.backends.forwarding import DeferredBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.books.recognisers import TextAligner
from ane.models.tortoise import pipeline
from ane.models.tortoise.chunks import TokenChunk, split_into_chunks, spoken_words
from ane.models.tortoise.decoding import Candidate
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.pipeline import TOO_LONG, Rendering
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness, Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.word_times import WordTimer, expected_starts, without_delay
from ane.speech.chunks import RenderedChunk
from ane.speech.request import SpeechContext
from ane.text import Tokenizer, read_passages
from tests.decoding import ChunkPrompt, decode
from tests.models.tortoise.sample_settings import CHUNKED, DIFFUSION, HIFIGAN, SENTENCE, THREE_SENTENCES


def test_networks_are_released_after_their_step_and_progress_reaches_its_end(synthesizer):
    loaded: dict[str, set[str]] = {}
    reported: dict[str, tuple[int, int]] = {}

    def report(phase: str, done: int, total: int, note: str) -> None:
        assert done >= reported.get(phase, (0, 0))[0]
        reported[phase], loaded[phase] = (done, total), set(synthesizer.backend._networks)

    synthesizer.speak(SENTENCE, "random", seed=1, settings=DIFFUSION, progress=report)
    assert reported == {"decode": (3, 3), "rank": (3, 3), "diffuse": (3, 3), "vocode": (1, 1)}
    assert loaded == {
        "decode": {"autoregressive"},
        "rank": {"clvp"},
        "diffuse": {"diffusion"},
        "vocode": {"mel_source_filter"},
    }
    assert synthesizer.backend._networks == {}


def test_networks_stay_loaded_on_request():
    keeping = ane.load("demo", keep=True)
    keeping.speak(SENTENCE, seed=1, settings=DIFFUSION)
    assert {"autoregressive", "clvp", "diffusion", "mel_source_filter"} <= set(keeping.backend._networks)


@pytest.mark.parametrize("diffusion", [None, Diffusion(2, guidance=None)], ids=["latents", "diffusion"])
def test_candidates_that_are_not_kept_are_freed_with_their_chunk(synthesizer, request, diffusion):
    """Counts the candidates that exist whenever progress is reported."""
    alive: dict[str, list[int]] = {}
    gc.freeze()  # objects that exist before the request are neither searched nor counted
    request.addfinalizer(gc.unfreeze)

    def count(phase: str, *rest) -> None:
        gc.collect()
        candidates = [item for item in gc.get_objects() if type(item) is Candidate]  # isinstance loads lazy modules
        alive.setdefault(phase, []).append(len(candidates))
        if phase in ("diffuse", "vocode"):
            assert all(len(one.hidden if diffusion else one.latents) == 0 for one in candidates)

    settings = replace(CHUNKED, candidates=4, diffusion=diffusion, sampling=Sampling(max_codes=2), lanes=4)
    assert len(synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings, progress=count).chunks) == 3
    # candidates of the chunk that has ended, and of the next chunk on its lanes
    assert max(alive["decode"]) <= 2 * 4 + 2
    assert set(alive["diffuse" if diffusion else "vocode"]) == {3}


def test_chunks_of_several_groups_are_spoken_in_order(synthesizer, monkeypatch):
    settings = replace(CHUNKED, lanes=1)
    expected = synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings)
    monkeypatch.setattr(pipeline, "MIN_GROUP", 2)
    in_groups = synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings)
    assert in_groups.chunks == expected.chunks
    np.testing.assert_allclose(in_groups.audio, expected.audio, atol=1e-4)


def test_an_interruption_stops_within_a_step(synthesizer):
    """Not after the whole chunk: 400 diffusion steps would keep the user waiting."""
    stages = []

    def interrupt(phase: str, *rest) -> None:
        stages.append(phase)
        if stages.count("diffuse") == 3:
            raise KeyboardInterrupt

    settings = replace(CHUNKED, diffusion=Diffusion(400, "ddim", guidance=None), sampling=Sampling(max_codes=4))
    with pytest.raises(KeyboardInterrupt):
        synthesizer.speak(SENTENCE, seed=4, settings=settings, progress=interrupt)
    assert stages.count("diffuse") == 3
    assert synthesizer.backend._networks == {}


def notes_on(synthesizer, token: int, stopped: list[bool], best: int = 1) -> list[str]:
    """The notes on a chunk with this token, whose candidates ended by themselves or not, up to the first colon."""
    settings = replace(HIFIGAN, candidates=len(stopped), best=best)
    request, context = synthesizer.request("Hi.", seed=0, settings=settings), SpeechContext()
    chunk = TokenChunk("Hi.", [token, 0], voice=synthesizer.voice_of(request, context))
    codes = np.zeros(500, np.int64)
    rows = np.zeros((1, synthesizer.model.config("autoregressive").model_dim), np.float32)
    candidates = [Candidate([5], each, rows, codes, rows) for each in stopped]
    rendered = RenderedChunk(chunk)
    ranked = Rendering(synthesizer.model, synthesizer.backend, [chunk], request, context)._ranked(rendered, candidates)
    assert len(ranked) == best
    return [note.partition(":")[0] for note in rendered.notes]


@pytest.mark.parametrize("beyond", [0, 50])
def test_text_with_tokens_that_clvp_does_not_know_is_not_ranked(synthesizer, beyond):
    """Other decoders know more tokens than CLVP."""
    token = synthesizer.model.config("clvp").num_text_tokens + beyond
    assert notes_on(synthesizer, token, [True, True]) == ["chunk {chunks} was not ranked"]


def test_a_chunk_is_unfinished_if_its_best_candidate_is(synthesizer):
    ended, unfinished = (notes_on(synthesizer, 300, [first, not first], best=2) for first in (True, False))
    assert unfinished[: len(ended)] == ended
    assert len(unfinished) == len(ended) + 1


LETTERS = ["A", "E", "F", "I", "K", "Q", "T", "W", "Y", "Z"]
WORDS = ["The", "FBI", "Yes", "Why", "Elephant", "IV", "Good morning", "Oh no"]
LONGEST = 1.2  # maximum seconds for a word


@pytest.fixture(scope="module")
def speaker():
    return ane.load("demo", backend="torch:cpu")


def test_a_word_alone_takes_no_longer_than_a_word_does(speaker):
    texts = LETTERS + WORDS
    for text, speech in zip(texts, speaker.speak_all(texts, seed=4), strict=True):
        assert 0.2 < len(speech.audio) / speech.sample_rate <= LONGEST * len(text.split()), text


def test_a_text_that_met_the_bound_has_a_note_and_a_longer_one_none(speaker):
    request = speaker.request("Elephant", seed=0)
    request = replace(request, settings=replace(request.settings, codes_per_word=2))
    assert speaker.speech_of(request, SpeechContext()).notes == [TOO_LONG.format(chunks=1)]
    assert speaker.speak("Good morning to all of you.", seed=0).notes == []


def test_a_text_without_an_end_mark_gets_a_full_stop_and_others_stay(speaker):
    tokenizer = Tokenizer(speaker.model.tokenizer)
    own = speaker.model.settings
    for settings, text, spoken in (
        (own, "The FBI", "the f b i."),
        ({}, "The FBI", "the f b i"),
        (own, "Why?", "why?"),
        (own, "Oh, no,", "oh, no,"),
    ):
        [chunk] = split_into_chunks(text, speaker.model, TortoiseSettings.of(model=settings))
        assert tokenizer.decode(chunk.tokens) == spoken


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.", 1),
        ("f b i.", 1),
        ("h t m l s.", 5 / 3),
        ("good morning.", 2),
        ("it's five o'clock.", 3),
        ("incomprehensible", 2),
        ("", 1),
        ("!", 1),
    ],
)
def test_the_length_of_a_text_is_counted_in_usual_words(text, words):
    assert spoken_words(text) == pytest.approx(words)


TEXT = "She asked her brother to help with the dishes after dinner."


def test_a_token_begins_after_the_codes_that_attend_to_those_before_it():
    """Codes 0 to 3 attend to token 0, code 4 to both alike, the others to token 1."""
    attention = np.zeros((8, 3))
    attention[:4, 0], attention[4, :2], attention[5:7, 1], attention[7, 2] = 1, 0.5, 1, 1
    np.testing.assert_allclose(expected_starts(attention), [0, 4.5, 7, 8])


def test_attention_far_from_the_path_does_not_count():
    attention = np.eye(20)
    attention[3] = 0.6 * attention[3] + 0.4 * np.eye(20)[19]
    np.testing.assert_allclose(expected_starts(attention), np.arange(21), atol=1e-6)


def test_a_delayed_head_is_read_that_many_codes_later():
    rows = np.arange(4)[:, None] * np.ones(2)
    assert without_delay(rows, 1)[:, 0].tolist() == [1, 2, 3, 3]
    assert without_delay(rows, -1)[:, 0].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("voice", ["heart", "michael"])
def test_words_are_where_a_recogniser_finds_them(synthesizer, voice):
    pytest.importorskip("pocketsphinx")
    speech = synthesizer.speak(TEXT, voice=voice, preset="fastest", seed=3, word_times=True)
    assert [word.word for word in speech.words] == TEXT.split()
    assert not any(word.estimated for word in speech.words)
    found = TextAligner().fit(TEXT, speech.audio, speech.sample_rate).words
    errors = np.abs(
        [(one.start - word.start, one.end - word.end) for one, word in zip(found, speech.words, strict=True)]
    )
    assert np.median(errors) < 0.03
    assert np.percentile(errors, 90) < 0.09


def test_the_sound_is_the_same_and_words_are_only_there_when_asked_for(synthesizer):
    timed = synthesizer.speak(TEXT, seed=1, settings=HIFIGAN, word_times=True)
    plain = synthesizer.speak(TEXT, seed=1, settings=HIFIGAN)
    np.testing.assert_array_equal(timed.audio, plain.audio)
    assert plain.words == []


@pytest.mark.parametrize("candidates", [1, 2])
def test_a_stream_states_the_same_words_while_it_sounds(synthesizer, candidates):
    text = "One small boat [pause:300ms] lay on the sand."
    settings = replace(TortoiseSettings.of("fastest", synthesizer.model.settings), candidates=candidates)
    words = synthesizer.speak(text, seed=1, settings=settings, speed=1.25, word_times=True).words
    stream = synthesizer.stream(text, seed=1, settings=settings, speed=1.25, word_times=True)
    counts = [len(stream.words) for _ in stream]
    assert 3 in counts, "those of the first chunk come before the second chunk has been decoded"
    assert (
        [word.word for word in stream.words]
        == [word.word for word in words]
        == text.replace("[pause:300ms] ", "").split()
    )
    np.testing.assert_allclose([word.start for word in stream.words], [word.start for word in words], atol=1e-6)
    assert all(-1e-6 < streamed.end - word.end < 0.2 for streamed, word in zip(stream.words, words, strict=True))


def test_words_come_earlier_by_the_silence_that_is_trimmed_before_them(synthesizer):
    settings = TortoiseSettings.of("fastest", synthesizer.model.settings)
    whole, trimmed = (
        synthesizer.speak(TEXT, seed=1, settings=replace(settings, silence=silence), word_times=True)
        for silence in (None, (0.02, 0.02))
    )
    cut = whole.words[1].start - trimmed.words[1].start
    begin = round(cut * whole.sample_rate)
    assert begin > 500
    np.testing.assert_array_equal(whole.audio[begin:][1000:9000], trimmed.audio[1000:9000])
    for one, other in zip(whole.words[1:], trimmed.words[1:], strict=True):
        assert (one.start - other.start, one.end - other.end) == pytest.approx((cut, cut), abs=1e-6)


def test_words_follow_speed_and_pauses(synthesizer):
    text = "One small boat [pause:800ms] lay on the sand."
    words, faster = (
        synthesizer.speak(text, preset="fastest", seed=1, speed=speed, word_times=True).words for speed in (1.0, 1.25)
    )
    assert words[3].start - words[2].end > 0.75
    assert faster[2].end == pytest.approx(words[2].end / 1.25, abs=0.05)
    assert faster[3].start - faster[2].end > 0.75


def test_without_stated_heads_those_that_follow_the_text_are_found(synthesizer):
    class Unstated(WordTimer):
        stated_heads = ()

    other = ane.load("demo")
    other.word_timer = lambda normaliser: Unstated(other.backend, other.model, normaliser)
    stated, found = (each.speak(TEXT, preset="fastest", seed=1, word_times=True).words for each in (synthesizer, other))
    assert not any(word.estimated for word in found)
    assert np.median([abs(a.start - b.start) for a, b in zip(stated, found, strict=True)]) < 0.08


def test_times_of_random_weights_are_estimated(random_bundle):
    synthesizer = ane.load(str(random_bundle))
    settings = replace(HIFIGAN, sampling=replace(HIFIGAN.sampling, max_codes=20))
    speech = synthesizer.speak("two words", seed=1, settings=settings, word_times=True)
    assert [(word.word, word.estimated) for word in speech.words] == [("two", True), ("words", True)]
    assert 0 <= speech.words[0].start < speech.words[1].end == pytest.approx(speech.seconds)


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_the_decoder_records_is_what_another_pass_finds(synthesizer, lanes):
    """Two chunks of unequal length with two candidates each, on lanes that are used again."""
    settings = TortoiseSettings.of("fastest", synthesizer.model.settings)
    timer = synthesizer.word_timer(settings.normaliser)
    conditioning = synthesizer.voice("heart", Randomness(0)).ar
    chunks = split_into_chunks(
        read_passages("One small boat [pause:300ms] lay on the warm sand."), synthesizer.model, settings
    )
    prompts = [
        ChunkPrompt(
            conditioning,
            chunk.tokens,
            [InverseCdfSampler(Randomness(1).candidate(index, candidate)) for candidate in range(2)],
        )
        for index, chunk in enumerate(chunks)
    ]
    decoded = decode(
        synthesizer.backend, prompts, timer.config, settings.sampling, lanes, recorded_heads=timer.recorded_heads
    )
    for chunk, candidates in zip(chunks, decoded, strict=True):
        for candidate in candidates:
            expected = timer.scores_of(chunk.tokens, conditioning, candidate.codes, timer.recorded_heads)
            np.testing.assert_allclose(candidate.prefix_scores, expected, atol=1e-3)


def test_without_a_recording_another_pass_gives_the_same_times(synthesizer, monkeypatch):
    recorded = synthesizer.speak(TEXT, preset="fastest", seed=1, word_times=True).words
    monkeypatch.setattr(TorchDecoder, "record", lambda self, heads: False)
    found = synthesizer.speak(TEXT, preset="fastest", seed=1, word_times=True).words
    np.testing.assert_allclose(
        [(word.start, word.end) for word in found], [(word.start, word.end) for word in recorded], atol=1e-4
    )


def test_scores_are_those_of_the_whole_network(synthesizer):
    """Of the last layer, whose scores depend on all layers before it."""
    network, config = synthesizer.backend.network("autoregressive"), synthesizer.model.config("autoregressive")
    columns = torch.from_numpy(np.random.default_rng(0).standard_normal((12, config.model_dim), dtype=np.float32))
    head, recorded = (config.layers - 1, 2), {}

    def attend(layer):
        def causal(q, k, v):
            recorded[layer] = (q @ k.mT * q.shape[-1] ** -0.5)[0]
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return causal

    with torch.inference_mode():
        network(columns[None], [attend(layer) for layer in range(config.layers)])
    found = synthesizer.backend.prefix_attention(columns.numpy(), 5, [head])
    passed_on = DeferredBackend(lambda: synthesizer.backend).prefix_attention(columns.numpy(), 5, [head])
    np.testing.assert_array_equal(passed_on, found)
    np.testing.assert_allclose(found[0], recorded[head[0]][head[1], 5:, :5].numpy(), atol=1e-4)
