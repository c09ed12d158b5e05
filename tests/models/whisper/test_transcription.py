"""Test the log-mel spectrogram, and the transcription of long recordings."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import ane
from ane.audio.reader import read_recording
from ane.backends import load_backend
from ane.backends.torch.kernels import KernelLinear
from ane.models.whisper import features
from ane.models.whisper.features import HOP, log_mel
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions, compression_ratio
from tests.imported import imported
from tests.models.whisper.conftest import ScriptedDecoder, window
from tests.models.whisper.random_whisper import RandomSizes, write_openai
from tests.refusals import assert_refused


def test_blocks_do_not_change_the_result(noise, monkeypatch):
    whole = log_mel(noise, 80, 1600)
    monkeypatch.setattr(features, "BLOCK", 37)
    np.testing.assert_array_equal(log_mel(noise, 80, 1600), whole)


@pytest.mark.parametrize("samples", [0, 159, 160, 161])
def test_a_frame_for_each_160_samples(noise, samples):
    assert log_mel(noise[:samples], 80, 1600).shape == (80, (samples + 1600) // 160)


QUICK = TranscriptionOptions(language="en", temperatures=(0.0,))
FIRST, HELLO = 50364, (39, 68, 75)  # bytes


def test_a_window_begins_where_the_last_segment_ended(transcriber, noise, scripted):
    decoder = scripted(
        window(FIRST, *HELLO, FIRST + 100, FIRST + 100, *HELLO),
        window(FIRST, *HELLO, FIRST + 200),
        window(FIRST + 10, *HELLO, FIRST + 20),
    )
    found = transcriber.transcribe(noise, 16000)
    assert [(segment.start, segment.end) for segment in found.segments] == [(0, 2), (2, 6), (6, 6.4)]
    assert [text.first_frame for text, _ in decoder.calls] == [0, 200, 600]
    assert decoder.shape == (1, 200, 8)
    assert (found.language, found.text, found.duration) == ("de", "HelHelHel", 10)


def test_the_language_is_that_of_a_short_recording_with_silence_after_it(transcriber, noise, scripted):
    """As in openai-whisper, which decodes a window with zeros after its mel, but hears the language with silence."""
    decoder = scripted(*[window(FIRST, *HELLO, FIRST + 200)] * 4)
    bands, frames = transcriber.encoder_config.n_mels, transcriber.window_frames
    for samples in (16000, len(noise)):
        transcriber.transcribe(noise[:samples], 16000)
        mel = np.ascontiguousarray(log_mel(noise[:samples], bands, frames * HOP)[None, :, :frames])
        np.testing.assert_array_equal(decoder.heard, transcriber.backend.run("encoder", mel=mel))


def test_text_so_far_is_the_prompt_of_the_next_window(transcriber, noise, scripted):
    parts = window(FIRST, *HELLO, FIRST + 200), window(FIRST, 1, FIRST + 200), window(FIRST, 2, FIRST + 100)
    decoder = scripted(*parts)
    transcriber.transcribe(noise, 16000, TranscriptionOptions(prompt="x"))
    prompts = [text.prompt for text, _ in decoder.calls]
    assert prompts[0] == tuple(transcriber.tokenizer.encode(" x"))
    assert prompts[1] == prompts[0] + parts[0].tokens
    assert prompts[2] == prompts[1] + parts[1].tokens
    decoder = scripted(*parts)
    transcriber.transcribe(noise, 16000, TranscriptionOptions(condition_on_previous_text=False))
    assert [text.prompt for text, _ in decoder.calls] == [(), (), ()]


def test_candidates_get_lanes_and_the_windows_states_when_the_greedy_text_is_unclear(transcriber, noise, monkeypatch):
    unclear = window(FIRST, *HELLO, FIRST + 200, log_probability=-2.0)
    greedy, sampled = ScriptedDecoder([unclear]), ScriptedDecoder([unclear, window(FIRST, *HELLO, FIRST + 200)])
    made = []

    def decoder(candidates: int) -> ScriptedDecoder:
        made.append(candidates)
        return greedy if candidates == 1 else sampled

    monkeypatch.setattr(transcriber, "decoder", decoder)
    transcriber.transcribe(noise[:16000], 16000, TranscriptionOptions("en", best_of=3))
    assert made == [1, 3, 3]
    assert [options.temperature for _, options in greedy.calls + sampled.calls] == [0.0, 0.2, 0.4]
    assert sampled.shape == greedy.shape == (1, 200, 8)


def test_text_of_a_high_temperature_is_not_a_prompt(transcriber, noise, scripted):
    poor, end = window(FIRST, *HELLO, FIRST + 200, log_probability=-2.0), window(FIRST, 1, FIRST + 200)
    decoder = scripted(poor, poor, poor, end, end)
    transcriber.transcribe(noise, 16000, TranscriptionOptions(temperatures=(0.0, 0.4, 0.6)))
    assert [options.temperature for _, options in decoder.calls[:3]] == [0.0, 0.4, 0.6]
    assert decoder.calls[3][0].prompt == ()


@pytest.mark.parametrize(
    ("first", "tries"),
    [
        (window(FIRST, *HELLO, FIRST + 500), 1),
        (window(FIRST, *HELLO, FIRST + 500, log_probability=-1.5), 2),
        (window(FIRST, *HELLO * 60, FIRST + 500), 2),
        (window(FIRST, *HELLO, FIRST + 500, log_probability=-1.5, no_speech=0.9), 1),
    ],
)
def test_an_unreliable_window_is_decoded_again(transcriber, noise, scripted, first, tries):
    decoder = scripted(first, window(FIRST, *HELLO, FIRST + 500))
    transcriber.transcribe(noise[:60000], 16000)
    assert len(decoder.calls) == tries


@pytest.mark.parametrize(("log_probability", "no_speech", "kept"), [(-1.5, 0.9, 0), (-0.5, 0.9, 1), (-0.5, 0.1, 1)])
def test_a_window_without_speech_is_dropped(transcriber, noise, scripted, log_probability, no_speech, kept):
    scripted(window(FIRST, *HELLO, FIRST + 500, log_probability=log_probability, no_speech=no_speech))
    assert len(transcriber.transcribe(noise[:60000], 16000, QUICK).segments) == kept


@pytest.mark.parametrize("samples", [0, 1, 200000])
def test_silence_gives_an_empty_transcript(transcriber, scripted, samples):
    scripted()
    found = transcriber.transcribe(np.zeros(samples, np.float32), 16000)
    assert (found.text, found.segments) == ("", ())


def test_silent_windows_are_skipped(transcriber, noise, scripted):
    decoder = scripted(window(FIRST, *HELLO, FIRST + 200))
    audio = np.concatenate((np.zeros(64000, np.float32), noise[:32000]))
    found = transcriber.transcribe(audio, 16000, QUICK)
    assert [text.first_frame for text, _ in decoder.calls] == [400]
    assert found.segments[0].start == 4


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1000), st.integers(1, 160000), st.sampled_from([0.0, 0.7]))
def test_times_never_decrease_whatever_the_network_predicts(transcriber, noise, seed, samples, temperature):
    options = replace(QUICK, temperatures=(temperature,), best_of=2, seed=seed)
    done = []
    found = transcriber.transcribe(noise[-samples:], 16000, options, lambda now, total: done.append(now / total))
    times = [time for segment in found.segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert done == sorted(done)
    assert done[-1:] in ([1.0], []), "less than 10 ms have no frame"


def test_an_english_model_knows_no_other_language(tmp_path, noise):
    path = write_openai(tmp_path, replace(RandomSizes(), n_vocab=51864))
    (tmp_path / "multilingual.tiktoken").rename(tmp_path / "gpt2.tiktoken")
    model = imported(path)
    english = Transcriber(model, load_backend("torch:cpu", model))
    assert_refused("language must be en", lambda: english.transcribe(noise, 16000, TranscriptionOptions(language="de")))
    assert english.transcribe(noise[:40000], 16000, replace(QUICK, language=None)).language == "en"


def test_what_cannot_be_transcribed_is_refused_before_any_work(transcriber):
    assert_refused(
        "audio has NaN or infinite samples", lambda: transcriber.transcribe(np.full(10, np.nan, np.float32), 16000)
    )
    assert_refused(
        "language must be one of",
        lambda: transcriber.transcribe(np.zeros(0, np.float32), 16000, TranscriptionOptions(language="klingon")),
    )
    synthesizer = ane.load("demo")
    assert_refused("is a Tortoise model, not Whisper", lambda: Transcriber(synthesizer.model, synthesizer.backend))


@pytest.mark.parametrize(
    "changes", [{"task": "sing"}, {"temperatures": ()}, {"temperatures": (-1.0,)}, {"best_of": 0}, {"beam_size": 0}]
)
def test_impossible_options_are_refused(changes):
    assert_refused(rf"^{next(iter(changes))} must be", TranscriptionOptions, **changes)


def test_repetition_compresses():
    assert compression_ratio("la " * 100) > 2.4 > compression_ratio("Ask what you can do for your country.")


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_run(hugging_face_folder, noise, precision):
    """Of a recording that is resampled."""
    model = imported(hugging_face_folder)
    transcriber = Transcriber(model, load_backend("torch:cpu", model, precision))
    assert transcriber.transcribe(np.repeat(noise[:40000], 3), 48000, QUICK).duration == pytest.approx(2.5)


def kind_of(layer: nn.Module) -> object:
    """Its type, and of the package's own kernels the weights, too."""
    return type(layer), layer.arguments.kind if isinstance(layer, KernelLinear) else None


def test_the_output_layer_has_the_weights_of_the_precision(hugging_face_folder):
    """It is two thirds of what a step of the smallest model reads."""
    model, layers = imported(hugging_face_folder), {}
    for precision in ("fp32", "int8"):
        decoder = load_backend("torch:cpu", model, precision).network("decoder")
        layers[precision] = decoder.token_embedding
        assert type(decoder.token_embedding) is type(decoder.blocks[0].mlp[0]), "packed as the other layers are"
    assert kind_of(layers["fp32"]) != kind_of(layers["int8"])


@pytest.mark.skipif(
    "WHISPER_DIR" not in os.environ,
    reason=(
        "needs real weights: WHISPER_DIR=FOLDER python -m pytest tests/models/whisper -k real_weights, FOLDER with an "
        "English-capable Whisper checkpoint and openai/whisper's tests/jfk.flac"
    ),
)
def test_real_weights_understand_a_sentence():
    folder = Path(os.environ["WHISPER_DIR"])
    model = imported(folder)
    audio, rate = read_recording(folder / "jfk.flac")
    found = Transcriber(model, load_backend("torch:cpu", model)).transcribe(audio, rate)
    assert "ask not what your country can do for you" in found.text.lower()
    assert found.language == "en"
    assert 0 <= found.segments[0].start < found.segments[-1].end <= 12
