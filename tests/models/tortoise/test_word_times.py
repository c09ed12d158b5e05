"""Compare the times of words from the decoder's attention with forced alignment."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import ane
from ane.backends.torch.decoder import TorchDecoder
from ane.books.recognisers import TextAligner
from ane.models.tortoise.chunks import split_into_chunks
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.word_times import WordTimer, expected_starts, without_delay
from ane.text import read_passages
from tests.decoding import ChunkPrompt, decode
from tests.models.tortoise.sample_settings import HIFIGAN

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
    assert 0 <= speech.words[0].start < speech.words[1].end <= speech.seconds + 1e-6


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
    np.testing.assert_allclose(found[0], recorded[head[0]][head[1], 5:, :5].numpy(), atol=1e-4)
