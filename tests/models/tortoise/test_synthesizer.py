"""The route from text to sound, on the bundle in the box."""

import gc
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

import ane
from ane.models.tortoise.decoding import Candidate
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import PRESETS, Settings
from ane.models.tortoise.synthesizer import Synthesizer
from ane.system.errors import UserError
from ane.voices import Voice

SHORT = Sampling(max_codes=24)
FAST = Settings(candidates=1, diffusion=None, sampling=SHORT)
QUALITY = Settings(candidates=3, diffusion=Diffusion(steps=3, guidance=None), sampling=SHORT)
TEXT = "The turtle was first."


@pytest.fixture(scope="module")
def synthesizer() -> Synthesizer:
    return ane.load()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))


@pytest.mark.parametrize("settings", [FAST, QUALITY], ids=["hifigan", "diffusion"])
def test_speech_is_24_khz_sound_within_one(synthesizer, settings):
    speech = synthesizer.speak(TEXT, seed=1, settings=settings)
    assert speech.sample_rate == 24000
    assert speech.audio.dtype == np.float32
    assert speech.audio.ndim == 1
    assert 0 < np.abs(speech.audio).max() <= 1
    assert speech.seconds == len(speech.audio) / 24000
    assert list(speech.spent)[:2] == ["voice", "decode"]
    assert speech.real_time_factor > 0


@pytest.mark.parametrize("settings", [FAST, QUALITY], ids=["hifigan", "diffusion"])
def test_the_seed_decides_the_speech(synthesizer, settings):
    one, again, other = (synthesizer.speak(TEXT, seed=seed, settings=settings).audio for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert len(one) != len(other) or np.abs(one - other).max() > 1e-3


def test_a_fresh_seed_is_told_and_speaks_the_same_again(synthesizer):
    speech = synthesizer.speak(TEXT, settings=FAST)
    np.testing.assert_array_equal(speech.audio, synthesizer.speak(TEXT, seed=speech.seed, settings=FAST).audio)
    assert synthesizer.speak(TEXT, settings=FAST).seed != speech.seed


def test_chunks_follow_each_other_and_the_first_does_not_depend_on_the_rest(synthesizer):
    two = Settings(candidates=1, diffusion=None, sampling=SHORT, split=(20, 40))
    speech = synthesizer.speak("The turtle was first. The rabbit came second.", seed=4, settings=two)
    assert speech.chunks == ["The turtle was first.", "The rabbit came second."]
    alone = synthesizer.speak("The turtle was first.", seed=4, settings=two).audio
    np.testing.assert_allclose(speech.audio[:len(alone)], alone, atol=1e-4)     # other lanes round otherwise
    assert len(speech.audio) > len(alone)


def test_a_chunk_of_symbols_between_sentences_is_passed_over(synthesizer):
    speech = synthesizer.speak("The turtle was first.\n\n* * *\n\nThe rabbit came second.", seed=4,
                               settings=Settings(candidates=1, diffusion=None, sampling=SHORT, split=(20, 30)))
    assert not any(re.fullmatch(r"\W*", chunk) for chunk in speech.chunks)


def test_a_chunk_that_the_normaliser_empties_is_passed_over(synthesizer):
    settings = Settings(candidates=1, diffusion=None, sampling=SHORT)
    speech = synthesizer.speak("Hello there. | <br> | Goodbye.", seed=4, settings=settings)
    assert speech.chunks == ["Hello there.", "Goodbye."]
    with pytest.raises(UserError, match=r"nothing to say in '<br> \| <hr>'"):
        synthesizer.speak("<br> | <hr>", seed=4, settings=settings)


@pytest.mark.parametrize(("split", "advice"), [((200, 300), "break it up with spaces"), (None, "let it be split")])
def test_a_word_too_long_for_the_decoder_is_named_with_advice_that_helps(synthesizer, split, advice):
    with pytest.raises(UserError, match=advice) as caught:
        synthesizer.speak("7" * 50, seed=4, settings=Settings(1, None, sampling=SHORT, split=split))
    assert ("--no-split" in str(caught.value)) == (split is None)
    assert ("7" * 50 in str(caught.value)) == (split is not None)


def test_a_chunk_that_figures_made_too_long_is_split_again(synthesizer):
    """300 characters of figures are far more than 400 tokens once they are spelt out."""
    digits = " ".join(["7777777777777777777"] * 15)
    speech = synthesizer.speak(digits, seed=4, settings=Settings(1, None, sampling=Sampling(max_codes=2)))
    assert len(speech.chunks) > 1
    assert " ".join(speech.chunks) == digits


def test_the_best_readings_come_best_first_and_each_is_heard(synthesizer):
    three = synthesizer.speak(TEXT, seed=1, settings=Settings(3, Diffusion(3, "p", None), best=3, sampling=SHORT))
    assert len(three.alternatives) == 2
    best = synthesizer.speak(TEXT, seed=1, settings=QUALITY)
    np.testing.assert_allclose(best.audio, three.audio, atol=1e-6)


def test_a_reading_that_found_no_end_is_said_so(synthesizer):
    speech = synthesizer.speak(TEXT, seed=1, settings=Settings(1, None, sampling=Sampling(max_codes=2)))
    assert any("no end was found" in note for note in speech.notes)


def test_a_voice_may_be_given_as_latents(synthesizer):
    widths = synthesizer.model.widths
    voice = Voice(*(np.ones((1, width), np.float32) for width in widths), name="ones")
    assert synthesizer.speak(TEXT, voice, seed=1, settings=FAST).voice == "ones"
    narrow = Voice(np.ones((1, 8), np.float32), np.ones((1, 8), np.float32), name="narrow")
    with pytest.raises(UserError, match="narrow"):
        synthesizer.speak(TEXT, narrow, seed=1, settings=FAST)


def test_networks_are_let_go_when_their_step_is_over(synthesizer):
    loaded = synthesizer.backend._networks
    synthesizer.speak(TEXT, "random", seed=1, settings=QUALITY)
    assert loaded == {}
    keeping = ane.load(keep=True)
    keeping.speak(TEXT, seed=1, settings=QUALITY)
    assert {"autoregressive", "clvp", "diffusion", "univnet"} <= set(keeping.backend._networks)


@pytest.mark.parametrize("diffusion", [None, Diffusion(2, guidance=None)], ids=["hifigan", "diffusion"])
def test_readings_that_are_not_kept_do_not_outlive_their_chunk(synthesizer, diffusion):
    """Candidates alive whenever progress is told: those being decoded, and the kept ones of the chunks before."""
    alive: dict[str, list[int]] = {}

    def watch(stage: str, *rest) -> None:
        gc.collect()
        readings = [item for item in gc.get_objects() if type(item) is Candidate]     # isinstance asks lazy modules
        alive.setdefault(stage, []).append(len(readings))
        if stage in ("diffuse", "vocode"):
            assert all(len(reading.hidden if diffusion else reading.latents) == 0 for reading in readings)

    settings = Settings(4, diffusion, sampling=Sampling(max_codes=2), split=(20, 30), lanes=4)
    chunks = synthesizer.speak("The turtle was first. The rabbit came second. The snail was third.", seed=4,
                               settings=settings, progress=watch).chunks
    assert len(chunks) == 3
    assert max(alive["decode"]) <= 2 * 4 + 2        # of the chunk that is complete and of the next one on its lanes
    assert set(alive["diffuse" if diffusion else "vocode"]) == {3}


def test_progress_runs_to_the_end_of_every_stage(synthesizer):
    seen: dict[str, tuple[int, int]] = {}

    def watch(stage: str, done: int, total: int, note: str) -> None:
        assert done >= seen.get(stage, (0, 0))[0]
        seen[stage] = (done, total)

    synthesizer.speak(TEXT, seed=1, settings=QUALITY, progress=watch)
    assert all(done == total for stage, (done, total) in seen.items() if stage)
    assert {"decode", "rank", "diffuse", "vocode"} <= set(seen)


def test_cvvp_without_clips_is_refused_before_any_code_is_sampled(golden_checkpoints, golden_config):
    from ane.backends import load_backend
    from ane.bundles import open_model

    model = open_model(checkpoints=golden_checkpoints, config=golden_config)
    settings = Settings(2, Diffusion(2, "p", None), cvvp_amount=0.5, sampling=SHORT)
    stages = []
    with pytest.raises(UserError, match="clips"):
        Synthesizer(model, load_backend("torch:cpu", model)).speak(TEXT, "random", seed=1, settings=settings,
                                                                   progress=lambda stage, *rest: stages.append(stage))
    assert not stages


def test_clips_of_several_lengths_do_not_matter_to_a_ranking_without_cvvp(synthesizer):
    mels = np.zeros((80, 517), np.float32), np.zeros((80, 300), np.float32)
    voice = Voice(*(np.ones((1, width), np.float32) for width in synthesizer.model.widths), "ones", "", mels)
    assert synthesizer.speak(TEXT, voice, seed=1, settings=QUALITY).voice == "ones"


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_no_name_of_the_default_voice(synthesizer, name):
    with pytest.raises(UserError, match="a name is missing"):
        synthesizer.speak(TEXT, name, seed=1, settings=FAST)


def test_a_ranking_that_is_not_numbers_is_refused(synthesizer, monkeypatch):
    """As networks in too narrow a precision would give it."""
    run = synthesizer.backend.run
    monkeypatch.setattr(synthesizer.backend, "run", lambda stage, **inputs: run(stage, **inputs) * (
        np.nan if stage == "clvp_speech" else 1))
    with pytest.raises(UserError, match="NaN or infinite scores"):
        synthesizer.speak(TEXT, seed=1, settings=QUALITY)


def test_a_network_that_the_model_lacks_is_named_before_any_work(synthesizer):
    with pytest.raises(UserError, match=r"cvvp\.pth"):
        synthesizer.speak(TEXT, seed=1, settings=Settings(2, None, cvvp_amount=0.5, sampling=SHORT))


@pytest.mark.parametrize(("name", "candidates", "steps", "guided"), [
    ("ultra_fast", 16, 30, False), ("fast", 96, 80, True), ("standard", 256, 200, True),
    ("high_quality", 256, 400, True)])
def test_presets_are_upstreams(name, candidates, steps, guided):
    preset = PRESETS[name]
    assert (preset.candidates, preset.diffusion.steps, preset.diffusion.guidance) == (
        candidates, steps, 2.0 if guided else None)


def test_checkpoints_are_loaded_by_their_directory(golden_checkpoints, golden_config, tmp_path, monkeypatch):
    """`ane.load` takes a directory of .pth files; sizes other than official come with a config.json beside them."""
    for file in golden_checkpoints.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").symlink_to(golden_config)
    speech = ane.load(tmp_path).speak(TEXT, "random", seed=1, settings=FAST)
    assert np.isfinite(speech.audio).all()
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert ane.load(f"~/{tmp_path.name}").model.path == tmp_path
    with pytest.raises(UserError, match="no bundle is named"):
        ane.load("n" * 300)


TWO = "The turtle was first. The rabbit came second. The snail was third."
SEVERAL = Settings(candidates=1, diffusion=None, sampling=SHORT, split=(20, 30))


@pytest.mark.parametrize("settings", [SEVERAL, replace(SEVERAL, candidates=3, diffusion=QUALITY.diffusion)],
                         ids=["hifigan", "diffusion"])
def test_steps_side_by_side_say_the_same(synthesizer, settings):
    threaded = Synthesizer(synthesizer.model, synthesizer.backend, side_by_side=True)
    beside = threaded.speak(TWO, seed=4, settings=settings)
    plain = synthesizer.speak(TWO, seed=4, settings=settings)
    assert beside.chunks == plain.chunks
    assert beside.codes == plain.codes
    np.testing.assert_allclose(beside.audio, plain.audio, atol=1e-4)
    assert not [thread for thread in threading.enumerate() if thread.name == "ane-ahead"]


def test_an_error_in_a_step_side_by_side_ends_them_all(synthesizer, monkeypatch):
    beside = Synthesizer(synthesizer.model, synthesizer.backend, side_by_side=True)
    run = synthesizer.backend.run

    def failing(stage: str, **inputs):
        if stage == "hifigan":
            raise UserError("no memory left")
        return run(stage, **inputs)

    monkeypatch.setattr(synthesizer.backend, "run", failing)
    with pytest.raises(UserError, match="no memory left"):
        beside.speak(TWO, seed=4, settings=SEVERAL)
    assert not [thread for thread in threading.enumerate() if thread.name == "ane-ahead"]


def test_several_texts_are_said_as_each_alone(synthesizer):
    texts = [TEXT, TWO, "Well done."]
    for text, speech in zip(texts, synthesizer.speak_all(texts, seed=4, settings=SEVERAL), strict=True):
        alone = synthesizer.speak(text, seed=4, settings=SEVERAL)
        assert (speech.chunks, speech.codes) == (alone.chunks, alone.codes)
        np.testing.assert_allclose(speech.audio, alone.audio, atol=1e-4)


def test_more_chunks_than_go_together_are_said_in_order(synthesizer, monkeypatch):
    monkeypatch.setattr("ane.models.tortoise.pipeline.WAVE", 2)
    few = replace(SEVERAL, lanes=1)
    waves = synthesizer.speak(TWO, seed=4, settings=few)
    monkeypatch.undo()
    np.testing.assert_allclose(waves.audio, synthesizer.speak(TWO, seed=4, settings=few).audio, atol=1e-4)


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_stream_without_diffusion_is_the_whole(synthesizer, candidates):
    settings = replace(SEVERAL, candidates=candidates)
    stream = synthesizer.stream(TWO, seed=4, settings=settings)
    pieces = list(stream)
    whole = synthesizer.speak(TWO, seed=4, settings=replace(settings, lanes=1))
    assert len(pieces) > 3
    assert (stream.codes, stream.chunks, stream.seed, stream.voice) == (whole.codes, whole.chunks, 4, whole.voice)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)
    assert stream.notes == whole.notes
    assert 0 < stream.timeline.first_sound < stream.timeline.now()


def test_a_stream_with_diffusion_is_as_long_as_the_whole(synthesizer):
    settings = replace(SEVERAL, diffusion=QUALITY.diffusion, silence=None)
    pieces = list(synthesizer.stream(TWO, seed=4, settings=settings))
    whole = synthesizer.speak(TWO, seed=4, settings=settings)
    assert sum(map(len, pieces)) == len(whole.audio)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)      # every chunk is but one window


def test_a_stream_that_is_closed_works_no_more(synthesizer):
    told = []
    stream = synthesizer.stream(TWO, seed=4, settings=SEVERAL, progress=lambda *now: told.append(now))
    next(stream)
    stream.close()
    before = len(told)
    assert list(stream) == []
    assert len(told) == before
    assert synthesizer.backend._networks == {}


def test_what_the_text_does_not_decide_is_made_ready_before_it(synthesizer):
    ready = Synthesizer(synthesizer.model, synthesizer.backend)
    voice = ready.prepare(settings=SEVERAL)
    assert {"autoregressive", "hifigan"} <= set(synthesizer.backend._networks)
    speech = ready.speak(TEXT, voice, seed=4, settings=SEVERAL)
    np.testing.assert_array_equal(speech.audio, synthesizer.speak(TEXT, seed=4, settings=SEVERAL).audio)


def test_closing_steps_side_by_side_ends_the_one_in_the_making(synthesizer):
    """Not the whole item: a chunk of 400 steps of diffusion would keep whoever closes waiting."""
    threaded = Synthesizer(synthesizer.model, synthesizer.backend, side_by_side=True)
    steps = []
    settings = replace(SEVERAL, diffusion=Diffusion(400, "ddim", guidance=None), sampling=Sampling(max_codes=4))

    def watch(stage: str, *rest) -> None:
        steps.append(stage)
        if steps.count("diffuse") == 3:
            raise KeyboardInterrupt

    speeches = threaded.speak_all([TWO, TWO], seed=4, settings=settings, progress=watch)
    with pytest.raises(KeyboardInterrupt):
        next(speeches)
    assert steps.count("diffuse") == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "ane-ahead"]


def test_what_was_spent_is_of_each_text(synthesizer):
    speeches = list(synthesizer.speak_all([TEXT, TEXT, TEXT], seed=4, settings=replace(SEVERAL, lanes=1)))
    whole = speeches[-1].timeline.spent()
    for stage, seconds in whole.items():
        assert sum(one.spent.get(stage, 0) for one in speeches) == pytest.approx(seconds)
    assert all(min(one.spent.values()) >= 0 for one in speeches)


@settings_of_hypothesis(max_examples=8, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(["The turtle was first.", "Well done.", "The rabbit came."]), min_size=1,
                               max_size=3).map(" ".join), min_size=1, max_size=3),
       lanes=st.integers(1, 5), threaded=st.booleans(), taken=st.integers(0, 6))
def test_texts_lanes_threads_and_closing_change_nothing_of_what_is_said(synthesizer, texts, lanes, threaded, taken):
    settings = replace(SEVERAL, lanes=lanes)
    speaking = Synthesizer(synthesizer.model, synthesizer.backend, side_by_side=threaded)
    for text, speech in zip(texts, speaking.speak_all(texts, seed=4, settings=settings), strict=True):
        alone = synthesizer.speak(text, seed=4, settings=replace(settings, lanes=1))
        assert (speech.chunks, speech.codes) == (alone.chunks, alone.codes)
        np.testing.assert_allclose(speech.audio, alone.audio, atol=1e-4)
        stream = synthesizer.stream(text, seed=4, settings=settings)
        pieces = [piece for piece, _ in zip(stream, range(taken), strict=False)]
        stream.close()
        heard = np.concatenate([*pieces, np.empty(0, np.float32)])
        np.testing.assert_allclose(heard, alone.audio[:len(heard)], atol=1e-4)
    assert synthesizer.backend._networks == {}
    assert not [thread for thread in threading.enumerate() if thread.name == "ane-ahead"]
