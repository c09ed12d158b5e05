"""Test FastSpeech: files that one clear line rejects, symbols, chunks, and the length, speed and notes of speech."""

import numpy as np
import pytest
import torch

from ane.backends import load_backend
from ane.backends.windows import FIRST_LENGTHS
from ane.bundles.bundle import Bundle
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.models.fastspeech.settings import HOP, SAMPLE_RATE, FastSpeechSettings
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from ane.models.fastspeech.text import SYMBOLS, halve, split_into_symbols, text_to_ids
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import split
from ane.text.passages import Passage
from tests.fastspeech_files import SMALL, V1, fastspeech_entries, write_fastspeech, write_hifigan
from tests.imported import imported
from tests.refusals import assert_refused, refusal_of


def test_sizes_are_read_from_the_tensors_of_a_checkpoint_or_a_plain_state_dict(files, tmp_path):
    torch.save(fastspeech_entries(), tmp_path / "plain.pt")
    assert imported(tmp_path / "plain.pt").config("fastspeech") == SMALL
    model = import_fastspeech(files / "checkpoint.pt")
    assert model.configs == {"fastspeech": SMALL}
    assert model.surplus.unneeded == {
        "checkpoint.pt": ["step", "optim", "phoneme_side.position.weight", "mel_side.position.weight"]
    }


def test_a_bundle_keeps_the_family_the_sizes_and_the_weights(files, tmp_path):
    model = import_fastspeech(files / "checkpoint.pt", {"padding": "published"}, vocoder=files / "generator.pth")
    write_bundle(model, tmp_path / "bundle", precision="fp16").verify()
    again = Bundle(tmp_path / "bundle")
    assert (again.family.name, again.precision, again.networks) == ("fastspeech", "fp16", model.configs.keys())
    assert (again.config("fastspeech").padding, again.config("vocoder")) == ("published", V1)
    for network in model.configs:
        for key, tensor in model.tensors(network).items():
            np.testing.assert_allclose(again.tensors(network)[key].float(), tensor, rtol=1e-3, atol=1e-6)
    assert sorted(path.name for path in again.path.iterdir()) == ["bundle.json", "weights"]
    with pytest.raises(UserError, match="is a FastSpeech model, which has no tokenizer"):
        _ = again.tokenizer
    with pytest.raises(UserError, match="which has no voices"):
        _ = again.widths


def without(key):
    return lambda entries: entries.pop(key)


def resized(key, *shape):
    return lambda entries: entries.update({key: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without("word_emb.weight"), "key word_emb.weight is missing: this is not a checkpoint of NVIDIA"),
        (without("mel_linear.bias"), "key mel_linear.bias is missing"),
        (without("phoneme_side.layer_stack.0.slf_attn.fc.weight"), "slf_attn.fc.weight is missing"),
        (without("mel_side.position.weight"), "mel_side.position.weight is missing"),
        (resized("mel_side.position.weight", 90, 24), "does not have 201 rows"),
        (resized("mel_side.position.weight", 201, 24), "is not FastSpeech's table of sines"),
        (resized("mel_side.layer_stack.0.slf_attn.linear.weight", 100, 24), "must have 192 rows per head"),
        (
            resized("mel_side.layer_stack.0.pos_ffn.w_2.weight", 24, 40, 3),
            "has shape 24×40×3, but the network has 24×40×5",
        ),
        (resized("word_emb.weight", 40, 24), "embeddings for 40 symbols"),
        (resized("word_emb.weight", 149), "word_emb.weight has a wrong shape"),
        (lambda entries: entries.update({"mel_linear.bias": torch.arange(80)}), "a plain tensor of floats"),
        (lambda entries: entries.update({"mel_linear.bias": "text"}), "a plain tensor of floats"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, change, fault):
    entries = fastspeech_entries()
    change(entries)
    assert fault in refusal_of(lambda: import_fastspeech(write_fastspeech(tmp_path / "x.pt", entries)))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([1, 2], "contains a list"),
        ({"a": 1}, "word_emb.weight is missing"),
        ({"model": {}}, "word_emb.weight is missing"),
        ({1: 2}, "word_emb.weight is missing"),
        ({"model": {"module.word_emb.weight": torch.zeros(3), "module.x": torch.ones(1)}}, "has a wrong shape"),
    ],
)
def test_something_else_is_refused(tmp_path, content, fault):
    torch.save(content, tmp_path / "x.pt")
    assert_refused(fault, lambda: import_fastspeech(tmp_path / "x.pt"))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({"padding": "none"}, "padding must be exact or published"), ({"d_model": 3}, "unknown argument 'd_model'")],
)
def test_arguments(files, arguments, fault):
    assert_refused(fault, lambda: import_fastspeech(files / "checkpoint.pt", arguments))


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("d_model", 0, "d_model must be like"),
        ("padding", "off", "padding must be"),
        ("fft_conv1d_kernel", 4, "must be odd"),
        ("other", 1, "does not know"),
    ],
)
def test_a_damaged_config_in_a_bundle_is_refused(files, tmp_path, name, value, fault):
    path = write_bundle(import_fastspeech(files / "checkpoint.pt"), tmp_path / "bundle").path / "bundle.json"
    text = path.read_text()
    field = f'"{name}": {SMALL.__dict__[name]!r}'.replace("'", '"') if name != "other" else '"d_model": 24'
    assert field in text
    replaced = f'"{name}": {value!r}'.replace("'", '"') + (', "d_model": 24' if name == "other" else "")
    path.write_text(text.replace(field, replaced))
    assert_refused(fault, lambda: Bundle(path.parent))


def test_a_vocoder_for_other_mels_is_refused(tmp_path, files):
    entries = fastspeech_entries()
    entries["mel_linear.weight"], entries["mel_linear.bias"] = torch.zeros(40, 24), torch.zeros(40)
    path = write_fastspeech(tmp_path / "x.pt", entries)
    assert_refused(
        r"takes 80 mel bands, but .* predicts 40",
        lambda: import_fastspeech(path, vocoder=write_hifigan(tmp_path / "generator.pth")),
    )


def spelt(text: str) -> str:
    return " ".join(SYMBOLS[index].removeprefix("@") for index in text_to_ids(text))


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("{HH AH0}", "HH AH0"),
        ("a{B}b", "a B b"),
        ("{B} {D}", "B   D"),
        ("{HH}\n{AH0}", "HH   AH0"),
        ("a {B", "a   b"),
        ("{}a", "a"),
        ("{B XX}", "B"),
    ],
)
def test_phonemes_in_braces(text, symbols):
    assert spelt(text) == symbols


@pytest.mark.parametrize(
    ("text", "positions"),
    [*(("This is one sentence of a longer text. " * 12, positions) for positions in (30, 60, 200)), ("1777 " * 20, 60)],
)  # numbers become longer when they are written in words
def test_no_chunk_exceeds_the_positions_and_no_word_is_lost(text, positions):
    chunks = split_into_symbols(text, (150, 250), positions)
    assert max(len(chunk.ids) for chunk in chunks) <= positions
    assert " ".join(chunk.text for chunk in chunks).split() == text.split()


def test_halves_of_a_chunk_are_complete_and_share_its_delivery():
    [chunk] = split_into_symbols([Passage("one two three four five six", 1.0, speed=1.5)], None, 100)
    parts = halve(chunk, 100, 0.25)
    assert " ".join(part.text for part in parts) == chunk.text
    assert [(part.speed, part.before, part.after, part.final) for part in parts] == [
        (1.5, 0.0, 0.25, False),
        (1.5, 0.0, 1.0, True),
    ]
    [word] = split_into_symbols("word", None, 100)
    assert halve(word, 100) == [word]


def test_braces_stay_together():
    text = "say {HH AH0 L OW1} and {W ER1 L D} again and again"
    for piece in split(text, 8, 12):
        assert piece.count("{") == piece.count("}")
    assert " ".join(split(text, 8, 12)) == text


@pytest.mark.parametrize(
    ("text", "lengths", "fault"),
    [
        ("", (150, 250), "nothing to say"),
        ("   ", None, "nothing to say"),
        ("{XX}", None, "nothing to say"),
        ("!?", None, "nothing to say"),
        ("a" * 50, (150, 250), "insert spaces"),
        ("word " * 20, None, "allow it to be split"),
    ],
)
def test_what_cannot_be_spoken(text, lengths, fault):
    assert_refused(fault, split_into_symbols, text, lengths, 40)


@pytest.mark.parametrize(("name", "value"), [("split", (300, 200)), ("pause", -1.0), ("batch", 0), ("rounding", "up")])
def test_a_value_out_of_range_is_refused(name, value):
    assert_refused(f"^{name} must be", FastSpeechSettings, **{name: value})


def test_options():
    settings = FastSpeechSettings.of()
    assert settings.changed({"split": (50, 60)}) == FastSpeechSettings(split=(50, 60))
    assert settings.changed({"no_split": True}).split is None
    assert_refused("split has no effect", settings.changed, {"no_split": True, "split": (1, 2)})


TEXT = "The more you buy, the more you save."
LONG = "This sentence is one of several. " * 3
NO_PAUSE = FastSpeechSettings(pause=0.0)


def test_the_sound_has_the_length_of_the_mel(synthesizer):
    progress, timeline = [], Timeline()
    speech = synthesizer.speak(TEXT, progress=lambda *report: progress.append(report), timeline=timeline)
    assert progress == [("text", 1, 1, ""), ("mel", 1, 1, ""), ("vocode", 1, 1, "")]
    assert timeline.first_audio is not None
    [mel], [counts] = speech.mels, speech.durations
    assert mel.shape == (80, counts.sum())
    assert speech.audio.shape == (counts.sum() * HOP,)
    assert (speech.sample_rate, speech.audio.dtype, speech.notes) == (SAMPLE_RATE, np.float32, [])
    assert np.abs(speech.audio).max() <= 1
    assert set(speech.seconds_by_phase) == {"text", "mel", "vocode"}
    assert speech.facts == {"speed": 1.0, "frames": counts.sum()}


def test_speed(synthesizer):
    slow, usual, fast = (synthesizer.speak(TEXT, speed=speed).facts["frames"] for speed in (0.5, 1.0, 2.0))
    assert slow == pytest.approx(2 * usual, rel=0.1)
    assert fast == pytest.approx(usual / 2, rel=0.3), "rounding whole frames"


def test_several_texts_share_passes_and_sound_as_alone(synthesizer, monkeypatch):
    texts = [TEXT, "Hello.", "It just works, and it does so every day."]
    alone = [synthesizer.speak(text).mels[0] for text in texts]
    calls, run = [], synthesizer.backend.run
    monkeypatch.setattr(synthesizer.backend, "run", lambda stage, **inputs: calls.append(stage) or run(stage, **inputs))
    together = list(synthesizer.speak_all(texts))
    assert [stage for stage in calls if stage != "vocoder"] == ["text", "mel"]
    for speech, mel in zip(together, alone, strict=True):
        np.testing.assert_allclose(speech.mels[0], mel, atol=1e-4)


def test_a_long_text_is_spoken_in_chunks_with_pauses_and_without_a_frame_lost(synthesizer):
    speech = synthesizer.speak(LONG, settings=NO_PAUSE)
    assert len(speech.chunks) > 1
    assert " ".join(speech.chunks).split() == LONG.split()
    assert max(mel.shape[1] for mel in speech.mels) <= synthesizer.most_frames
    assert len(speech.audio) == HOP * sum(int(counts.sum()) for counts in speech.durations)
    paused = synthesizer.speak(LONG, settings=FastSpeechSettings(pause=0.1))
    assert len(paused.audio) - len(speech.audio) == 2205 * (len(speech.chunks) - 1)


def test_a_chunk_with_too_many_frames_is_split_in_order(synthesizer):
    texts = ["A short one.", "one two three four five six seven eight nine ten", "The last."]
    settings = FastSpeechSettings(batch=2)
    spoken = [speech.chunks for speech in synthesizer.speak_all(texts, speed=0.5, settings=settings)]
    assert len(spoken[1]) > 1
    assert [" ".join(chunks) for chunks in spoken] == texts


def test_what_cannot_be_split_is_refused(synthesizer):
    assert_refused(
        r"takes \d+ mel frames at speed 0.25, and one pass takes at most 200: raise",
        synthesizer.speak,
        "incomprehensibilities",
        speed=0.25,
    )
    assert_refused(
        "allow it to be split",
        lambda: synthesizer.speak(
            "one two three four five six seven eight", speed=0.5, settings=FastSpeechSettings(split=None)
        ),
    )


def test_notes_name_unknown_phonemes_and_griffin_lim_in_place_of_a_vocoder(files):
    model = imported(files / "checkpoint.pt")
    speech = FastSpeechSynthesizer(model, load_backend("torch:cpu", model)).speak("{HH XX1 AH0} a {hh}")
    assert len(speech.audio) == HOP * speech.facts["frames"]
    assert "Griffin-Lim" in speech.notes[0]
    assert "--vocoder" in speech.notes[0]
    assert "not ARPAbet phonemes and are not spoken: XX1, hh" in speech.notes[1]


def test_durations_of_zero_give_silence_and_a_note(files):
    model = imported(files / "checkpoint.pt", vocoder=files / "generator.pth")
    synthesizer = FastSpeechSynthesizer(model, load_backend("torch:cpu", model))
    predictor = synthesizer.backend.network("fastspeech").length_regulator.duration_predictor
    predictor.linear_layer.bias.fill_(-9)
    predictor.linear_layer.weight.zero_()
    speech = synthesizer.speak("Hello.")
    assert (len(speech.audio), speech.real_time_factor) == (0, float("inf"))
    assert "is silent" in speech.notes[0]


def test_a_stream_joins_to_the_same_sound(synthesizer):
    whole = synthesizer.speak(3 * LONG, speed=0.8)
    stream = synthesizer.stream(3 * LONG, speed=0.8)
    assert (stream.seconds, stream.real_time_factor) == (0, float("inf"))
    pieces = list(stream)
    assert len(pieces) > len(stream.chunks) > 1
    assert len(pieces[0]) < FIRST_LENGTHS[-1] * HOP, "short, so that it comes soon"
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4)
    assert (stream.facts, stream.seconds) == (whole.facts, whole.seconds)
    assert set(stream.seconds_by_phase) == {"text", "mel", "vocode"}
    stream.close()


def test_pauses_and_ssml_change_single_chunks(synthesizer):
    plain = synthesizer.speak(TEXT, settings=NO_PAUSE)
    paused = synthesizer.speak(f"[pause:0.5s]{TEXT} [pause:1s]", settings=NO_PAUSE)
    assert len(paused.audio) == len(plain.audio) + 1.5 * SAMPLE_RATE
    ssml = f'<speak><prosody rate="50%" volume="soft">{TEXT}</prosody><break time="1s"/>{TEXT}</speak>'
    slow = synthesizer.speak(ssml, settings=NO_PAUSE)
    # the slow part needs more frames than the model has positions, so it becomes two chunks
    *slow_mels, last = slow.mels
    assert sum(mel.shape[1] for mel in slow_mels) == pytest.approx(2 * plain.mels[0].shape[1], rel=0.1)
    np.testing.assert_allclose(last, plain.mels[0], atol=1e-4)
    np.testing.assert_allclose(np.concatenate(list(synthesizer.stream(ssml, settings=NO_PAUSE))), slow.audio, atol=1e-4)


def test_a_word_lasts_as_long_as_its_symbols_in_a_stream_too(synthesizer):
    """ "b" of the first chunk is symbols 2 to 3 of "a bc."; the second chunk begins after the first and the pauses."""
    settings, text = FastSpeechSettings(split=(1, 6), pause=0.1), "a bc. [pause:1s] d e"
    speech = synthesizer.speak(text, settings=settings)
    words = speech.words
    assert [word.word for word in words] == ["a", "bc.", "d", "e"]
    ends = [np.concatenate(([0], frames.cumsum())) * 256 / 22050 for frames in speech.durations]
    assert (words[1].start, words[1].end) == pytest.approx((ends[0][2], ends[0][4]))
    assert words[3].start == pytest.approx(ends[0][-1] + 1.1 + ends[1][2], abs=1e-4)
    stream = synthesizer.stream(text, settings=settings)
    next(stream)
    assert [word.word for word in stream.words] == ["a", "bc."], "those of a chunk come with its first piece"
    list(stream)
    assert [word.word for word in stream.words] == [word.word for word in words]
    np.testing.assert_allclose(
        [(word.start, word.end) for word in stream.words], [(word.start, word.end) for word in words]
    )
