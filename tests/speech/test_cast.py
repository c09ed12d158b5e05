"""Test a text in several voices (marks, SSML, a cast), on a small Kokoro with two voices and the embedded models."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import ane
from ane.backends.onnx.graph_file import GraphBackend
from ane.backends.torch.backend import TorchBackend
from ane.models.kokoro.synthesizer import KokoroSynthesizer
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.system.errors import UserError
from ane.text.cast import Cast, read_cast
from tests.imported import imported
from tests.models.kitten.kitten_model import write_kokoro_model
from tests.random_model import random_model
from tests.refusals import assert_refused

CAST = {"quotations": "af_heart", "speakers": {"Anna": "af_bella"}}


@pytest.fixture
def kokoro(tmp_path: Path) -> KokoroSynthesizer:
    model = imported(write_kokoro_model(tmp_path / "kokoro"))
    return KokoroSynthesizer(model, GraphBackend(model))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("One. [voice:af_bella]Two.[voice] Three.", {}),
        ('<speak>One. <voice name="af_bella">Two.</voice> Three.</speak>', {}),
        ("One. [voice:Anna]Two.[voice] Three.", {"cast": CAST}),
    ],
)
def test_each_passage_is_spoken_as_by_its_voice_alone(
    kokoro: KokoroSynthesizer, text: str, arguments: dict[str, Any]
) -> None:
    speech = kokoro.speak(text, **arguments)
    assert [chunk.strip() for chunk in speech.chunks] == ["One.", "Two.", "Three."]
    alone = [
        kokoro.speak(part, voice).audio for part, voice in (("One.", None), ("Two.", "af_bella"), ("Three.", None))
    ]
    pause = np.zeros(round(0.25 * 24000), np.float32)
    np.testing.assert_array_equal(speech.audio, np.concatenate((alone[0], pause, alone[1], pause, alone[2])))
    assert [word.voice for word in speech.words] == ["", "Anna" if arguments else "af_bella", ""]
    assert ["voice" in word.as_dict() for word in speech.words] == [False, True, False]


def test_quotations_are_spoken_by_the_speakers_of_a_cast(kokoro: KokoroSynthesizer) -> None:
    speech = kokoro.speak("“Good day,” said Anna. It rained. “Who is there?” asked Tom.", cast=CAST)
    assert [(word.word, word.voice) for word in speech.words if word.voice] == [
        ("“Good", "Anna"),
        ("day,”", "Anna"),
        ("“Who", "quotation"),
        ("is", "quotation"),
        ("there?”", "quotation"),
    ]
    quoted = kokoro.speak("He said: “Good day.”", quote_voice="af_bella")
    assert [word.voice for word in quoted.words] == ["", "", "quotation", "quotation"]


def test_text_that_arrives_keeps_its_voice_from_clause_to_clause(kokoro: KokoroSynthesizer) -> None:
    stream = kokoro.feed(
        [
            "[voice:af_bella]This is the first clause, ",
            "and this comes later. And there is more. ",
            "[voice]This is the narrator again.",
        ]
    )
    assert sum(map(len, stream))
    voices = {word.word: word.voice for word in stream.words}
    assert (voices["first"], voices["more."], voices["narrator"]) == ("af_bella", "af_bella", "")
    assert_refused("cast cannot be used with text that is still arriving", kokoro.feed, ["a"], cast=CAST)
    assert_refused("quote_voice cannot be used with text that", kokoro.feed, ["a"], quote_voice="af_bella")


@pytest.fixture(scope="module")
def tortoise() -> TortoiseSpeaker:
    model = random_model()
    return TortoiseSpeaker(model, TorchBackend(model, "cpu", "fp32"))


@pytest.mark.parametrize(
    "text",
    ["[voice:{}]Two.[voice] Three.", '<speak>One. <voice name="{}">Two.</voice></speak>', "[voice:random&{}]Two."],
)
@pytest.mark.parametrize(
    "name", ["/dev/zero", "pipe", "./pipe", "clip.wav", "folder", "folder/", "~", "../{}/clip.wav"]
)
def test_a_text_names_voices_and_never_files(
    tortoise: TortoiseSpeaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    """Neither a pipe, of which a reader waits for ever, nor a recording of somebody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    rate, time = 22050, np.arange(22050) / 22050
    for clip in ("clip.wav", "folder/clip.wav"):
        soundfile.write(tmp_path / clip, np.sin(700 * time).astype(np.float32) / 2, rate)
    os.mkfifo(tmp_path / "pipe")
    spoken = text.format(name.format(tmp_path.name))
    for speak in (tortoise.speak, tortoise.stream, tortoise.feed):
        if speak != tortoise.feed or not spoken.startswith("<"):  # a text that arrives cannot be SSML
            with pytest.raises(UserError, match=r"no voice is named .* a text cannot name a file"):
                list(speak([spoken] if speak == tortoise.feed else spoken, "random"))


def test_a_cast_names_files_for_the_names_of_a_text(tortoise: TortoiseSpeaker, tmp_path: Path) -> None:
    time = np.arange(22050) / 22050
    soundfile.write(tmp_path / "clip.wav", np.sin(700 * time).astype(np.float32) / 2, 22050)
    cast = {"speakers": {"Anna": str(tmp_path / "clip.wav")}}
    settings = TortoiseSettings(1, None)
    settings = replace(settings, sampling=replace(settings.sampling, max_codes=10))
    assert len(tortoise.speak("[voice:Anna]Two.", "random", settings=settings, cast=cast).audio)


@pytest.mark.parametrize("voice", ["pipe", "pipe.wav", "/dev/zero"])
def test_a_voice_that_is_no_regular_file_is_refused_and_not_waited_for(
    tortoise: TortoiseSpeaker, tmp_path: Path, voice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pipe", "pipe.wav"):
        os.mkfifo(tmp_path / name)
    assert_refused("not a regular file", tortoise.speak, "One.", voice)


@pytest.mark.parametrize(
    ("speakers", "aliases"),
    [({"Tom": "a", "tom": "b"}, {}), ({"The Cat": "a", "cat": "b"}, {}), ({"Tom": "a", "Ann": "b"}, {"TOM": "Ann"})],
)
def test_two_voices_for_a_name_that_is_one_in_a_text_are_refused(
    speakers: dict[str, str], aliases: dict[str, str]
) -> None:
    assert_refused(
        r"speakers has '.*' and '.*', which look the same in a text: rename one",
        Cast,
        speakers=speakers,
        aliases=aliases,
    )


def test_an_alias_may_spell_the_name_of_its_speaker_otherwise() -> None:
    assert Cast(speakers={"Tom": "a"}, aliases={"tom": "Tom"}).speaker_named("TOM") == "Tom"


@pytest.mark.parametrize(
    ("text", "cast", "message"),
    [
        (
            "One.\n[voice:nobody]Two.",
            None,
            r"line 2, voice 'nobody': no voice is named 'nobody': the voices are .*af_bella",
        ),
        (
            "“No,” said Anna.",
            Cast(speakers={"Anna": "nobody"}),
            "voice 'nobody' of Anna in the cast: no voice is named",
        ),
        ("<speak>“No.”</speak>", Cast(quotations="af_bella"), "cast has no effect on quotations in SSML"),
    ],
)
def test_an_unknown_voice_is_refused_before_a_word_is_spoken(
    kokoro: KokoroSynthesizer, text: str, cast: Any, message: str
) -> None:
    assert_refused(message, kokoro.stream, text, cast=cast)


def test_a_voice_of_quotations_is_refused_in_ssml_under_its_own_name(kokoro: KokoroSynthesizer) -> None:
    text, message = "<speak>“No.”</speak>", "quote_voice has no effect on quotations in SSML"
    assert_refused(message, kokoro.stream, text, quote_voice="af_bella")


def test_a_model_of_one_voice_refuses_others() -> None:
    speaker = ane.load()
    for text, arguments in (("A.", {"cast": CAST}), ("A.", {"quote_voice": "heart"}), ("[voice:heart]A.", {})):
        assert_refused(
            r"no effect on heart, whose only voice is heart: leave it out$", speaker.speak, text, **arguments
        )


def test_tortoise_changes_its_voice_without_loading_its_networks_again() -> None:
    speaker = ane.load("demo", backend="torch")
    other = next(name for name in ane.voices.list_voices([speaker.model.voices]) if name != speaker.model.default_voice)
    loads: list[str] = []
    load = speaker.model.tensors
    object.__setattr__(speaker.model, "tensors", lambda network: loads.append(network) or load(network))
    assert len(speaker.speak(f"One. [voice:{other}]Two.[voice] Three.", seed=1).chunks) == 3
    assert loads.count("source_filter") == 1  # one load serves all three stretches of text
    assert not speaker.backend.keep


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("speakers = 3", "speakers must be"),
        ("singer = 'a'", "singer is unknown: use narrator, quotations, speakers, aliases, lines"),
        ("x =", "not TOML"),
        ("[lines]\n'Good day' = 'Tom'", "lines has 'Tom' for 'Good day', but speakers has no 'Tom', only nobody"),
        ("[speakers]\n'a]b' = 'x'", "without brackets"),
    ],
)
def test_a_faulty_cast_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "cast.toml").write_text(content)
    assert_refused(message, lambda: read_cast(tmp_path / "cast.toml"))
