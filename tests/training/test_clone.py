"""Speakers to tell apart: their mixtures, their speech, the encoder that learns from them, and its measurements."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

import ane
from ane.audio import resample
from ane.audio.mel import CONDITIONING_RATE, HOP
from ane.system.errors import UserError
from benchmarks.data_packages import package_folder, whisper_folder
from benchmarks.teachers import kokoro, kokoro_style
from training import clone_encoder, clone_speech
from training.clone_encoder import ClipLessons, in_random_rooms, recorded_elsewhere
from training.clone_hearing import HeardClip, separation
from training.clone_speakers import CONFIG, TIMBRE, passes, read_config, speakers_of
from training.speech import RATE, Shard
from training.text import held_out_sentences

CONFIGURATION = read_config(CONFIG)
HELD_BACK = CONFIGURATION.speakers.held_back_tables
TABLES = sorted((*HELD_BACK, "af_heart", "am_adam", "bf_emma", "bm_daniel", "jf_alpha", "zm_yunxi"))
FETCH = "`python -m benchmarks quality --teacher 'kokoro am_michael'` fetches it"


def tiny_config(folder, **values):
    """A configuration with a few speakers, and the values of the given lines."""
    values = {
        "learned": 3,
        "held_back": 2,
        "recordings": 2,
        "held_back_recordings": 2,
        "texts": 1,
        "sentences": 1,
    } | values
    lines = CONFIG.read_text(encoding="utf-8").splitlines()
    lines = [f"{name} = {values[name]}" if (name := line.partition(" ")[0]) in values else line for line in lines]
    path = folder / "clone.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_nobody_to_learn_from_has_a_part_of_a_held_back_table():
    speakers = speakers_of(CONFIGURATION, TABLES)
    assert speakers == speakers_of(CONFIGURATION, TABLES)
    assert Counter(speaker.held_back for speaker in speakers) == {True: 30, False: 270}
    assert len({speaker.name for speaker in speakers}) == 300
    for speaker in speakers:
        used = {table for shares in (speaker.timbre, speaker.prosody) for table, share in shares.items() if share}
        assert used <= set(HELD_BACK) if speaker.held_back else used.isdisjoint(HELD_BACK)
        assert not used - set(TABLES)
        assert sum(speaker.timbre.values()) == pytest.approx(1)
        assert sum(speaker.prosody.values()) == pytest.approx(1)
        assert not {"jf_alpha", "zm_yunxi"} & set(speaker.prosody)  # they would speak with an accent
    assert [speaker.timbre for speaker in speakers[: len(HELD_BACK)]] == [{table: 1.0} for table in HELD_BACK]
    assert any(min(speaker.timbre.values()) < 0 for speaker in speakers)
    with pytest.raises(UserError, match="no style table af_bella"):
        speakers_of(CONFIGURATION, TABLES[1:])


def test_a_style_is_a_mixture_of_tables():
    try:
        bella, kore = kokoro_style("af_bella"), kokoro_style("af_kore")
    except UserError as error:
        pytest.skip(f"{error}; {FETCH}")
    speaker = speakers_of(CONFIGURATION, TABLES)[0]
    assert np.array_equal(speaker.style(), bella)
    mixed = type(speaker)("x", True, {"af_bella": 1.5, "af_kore": -0.5}, {"af_kore": 1.0}).style()
    assert np.allclose(mixed[:, :TIMBRE], 1.5 * bella[:, :TIMBRE] - 0.5 * kore[:, :TIMBRE], atol=1e-6)
    assert np.array_equal(mixed[:, TIMBRE:], kore[:, TIMBRE:])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, with two recordings of five speakers. They are heart, played at several rates."""
    folder = tmp_path_factory.mktemp("clone")
    config = read_config(tiny_config(folder))
    heart = ane.load(threads=1)
    speakers = speakers_of(config, TABLES)
    rates = {speaker.name: rate for speaker, rate in zip(speakers, (0.8, 1.3, 0.7, 1.0, 1.5), strict=True)}

    def voice(speaker):
        return lambda text: resample(heart.speak(text, seed=1).audio, round(RATE * rates[speaker.name]), RATE)

    (folder / "speech").mkdir()
    recordings = clone_speech.recordings_of(folder / "speech", config, speakers, ["A red boat.", "It rains here."])
    clone_speech.write_recordings(recordings[:4], voice, None)
    written = {path: path.stat().st_mtime_ns for path in (folder / "speech").iterdir()}
    assert len(written) == 4
    clone_speech.write_recordings(recordings, voice, None)
    assert len(list((folder / "speech").iterdir())) == 10
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    return folder


def test_held_back_speakers_speak_first_and_first_recordings_have_held_out_sentences(run):
    config = read_config(run / "clone.toml")
    recordings = clone_speech.recordings_of(run / "speech", config, speakers_of(config, TABLES), ["one", "two"])
    names = [recording.path.stem for recording in recordings]
    assert names[:5] == ["held000-0", "held001-0", "held000-1", "held001-1", "learned000-0"]
    assert names[7:] == ["learned000-1", "learned001-1", "learned002-1"]
    for recording in recordings:
        first = recording.path.stem.endswith("-0")
        assert set(recording.texts) <= (set(held_out_sentences()) if first else {"one", "two"})
        assert len(recording.texts) == 1
    assert Shard.load(recordings[0].path).hours * 3600 > 1


def test_an_encoder_learns_to_predict_embeddings_and_goes_on_from_its_checkpoint(run):
    """The embeddings are mean spectra here, which need no package."""
    (run / "heard").mkdir()
    for path in (run / "speech").iterdir():
        shard, (name, place) = Shard.load(path), path.stem.split("-")
        mean = shard.mel.astype(np.float32).mean(axis=0) - 0.5
        for rate in ("1.00", "0.88", "1.14"):
            kept = run / "heard" / f"{name}@{rate}-{place}.npz"
            np.savez(kept, mel=shard.mel, embedding=mean / np.linalg.norm(mean))
    curves = []
    for steps in ("[1]", "[1, 10]", "[1, 10]"):
        config = tiny_config(run, steps=steps, batch=517, warmup=2, average=0.0)
        assert clone_encoder.main(["-o", str(run), "--config", str(config), "--threads", "1"]) == 0
        curves.append(json.loads((run / "clone_encoder-3" / "curve.json").read_text()))
    first, last = ([point for point in curve if "error" in point][-1] for curve in curves[:2])
    assert (first["step"], last["step"]) == (1, 10)
    assert last["error"] < first["error"]
    assert curves[2] == curves[1]
    assert {"held-back same", "held-back other", "held-back auc", "held-back eer"} <= set(curves[1][-1])
    assert curves[1][-1]["held-back agreement"] > curves[0][-1]["held-back agreement"]  # on the same recordings

    assert clone_encoder.main(["-o", str(run), "--config", str(config), "--speakers", "2", "--minutes", "1e-9"]) == 0
    assert json.loads((run / "clone_encoder-2" / "curve.json").read_text())[-1]["step"] == 1


def test_a_speaker_who_fails_the_gate_teaches_nothing(run):
    gate = CONFIGURATION.gate
    assert passes(gate, {"distillmos": 3.8, "errors": 1, "words": 34})
    assert not passes(gate, {"distillmos": 3.7, "errors": 0, "words": 34})
    assert not passes(gate, {"distillmos": 4.0, "errors": 2, "words": 34})
    (run / "judged.json").write_text(json.dumps({"learned001": {"distillmos": 2.0, "errors": 0, "words": 9}}))
    heard = clone_encoder.speech_to_learn(run, CONFIGURATION, None, clone_encoder.Ear())
    (run / "judged.json").unlink()
    assert [{one.speaker.partition("@")[0] for one in some} for some in heard] == [{"learned000"}, {"learned002"}]
    assert [len(some) for some in heard] == [4, 4]  # two recordings, and two more rates of the first


@pytest.mark.parametrize("native", [False, True])
def test_the_loss_that_tells_speakers_apart_is_zero_for_their_embeddings(monkeypatch, native):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    embeddings = np.eye(3, 8, dtype=np.float32)
    mels = [np.full((200, 80), level, np.float16) for level in (-3.0, 0.0, 2.0)]
    recordings = [HeardClip(str(index), mel, embeddings[index]) for index, mel in enumerate(mels)]
    lessons = ClipLessons(recordings, CONFIGURATION.encoder, 1034, np.ones(80, np.float32))
    speakers = torch.randint(3, (2,), generator=torch.Generator().manual_seed(0))  # the first choice of a step
    wrong, right = (
        lessons.losses(lambda mel, rows=rows: rows @ torch.eye(8), 3, torch.Generator().manual_seed(0))
        for rows in (torch.ones(2, 8), lessons.targets[speakers])
    )
    assert wrong["error"] > 1
    assert right["error"] == 0
    assert right["contrast"] < 1e-4 < wrong["contrast"]
    assert (right["hits"], float(right["loss"])) == (1, pytest.approx(0, abs=1e-4))


def test_another_microphone_changes_level_response_and_noise_but_not_the_length():
    mels = torch.randn(4, 60, 80, generator=torch.Generator().manual_seed(0)) - 2
    changed = recorded_elsewhere(mels, torch.Generator().manual_seed(1))
    assert changed.shape == mels.shape
    assert torch.isfinite(changed).all()
    shift = (changed - mels).mean(dim=1)  # (4, bands)
    assert shift.mean(dim=1).std() > 0.3
    assert shift.std(dim=1).min() > 0.1
    assert torch.equal(changed, recorded_elsewhere(mels, torch.Generator().manual_seed(1)))


def test_a_room_lets_sound_fade_and_keeps_its_power():
    mels = torch.full((64, 200, 2), -11.0)
    mels[:, 20] = 3.0
    heard = in_random_rooms(mels, torch.Generator().manual_seed(1))
    assert (heard[:, :20] <= mels[:, :20] + 1e-3).all()
    assert (heard[:, 21:60].diff(dim=1) <= 0).all()
    power = heard.exp().sum(dim=1) / mels.exp().sum(dim=1)
    assert power.min() > 0.9
    assert power.max() < 1.02
    seconds = -np.log(1e6) * HOP / CONDITIONING_RATE / heard[:, 21:31].diff(dim=1).mean(dim=1)
    assert 0.12 < seconds.min() < 0.3
    assert 0.6 < seconds.max() < 1


def test_separation_counts_the_pairs_of_recordings():
    names = ["a", "a", "b", "b", "c"]
    apart = separation(np.eye(3)[[0, 0, 1, 1, 2]], names)
    assert (apart["same"], apart["other"], apart["auc"], apart["eer"]) == (1.0, 0.0, 1.0, 0.0)
    assert separation(np.ones((5, 1)), names)["auc"] == 0.5
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [str(index // 4) for index in range(60)]
    found = separation(vectors, names)
    pairs = [(vectors[i] @ vectors[j], names[i] == names[j]) for i in range(60) for j in range(i)]
    same, other = ([cosine for cosine, alike in pairs if alike is wanted] for wanted in (True, False))
    assert found["auc"] == pytest.approx(np.mean([[one > two for two in other] for one in same]))
    assert found["eer"] == pytest.approx(0.5, abs=0.1)
    assert found["same"] == pytest.approx(np.mean(same))


def test_kokoro_speaks_in_a_mixture_and_the_encoder_is_measured(tmp_path):
    """The whole way from style tables to a report, with the teachers' weights."""
    config = tiny_config(tmp_path, learned=1, recordings=1, different_texts=4, steps="[1]", batch=517, warmup=0)
    (tmp_path / "texts.txt").write_text("a red boat.\n" * 4, encoding="utf-8")
    arguments = ["-o", str(tmp_path), "--config", str(config), "--threads", "1"]
    try:
        whisper_folder("base")
        for name in ("distillmos", "xls-r-sqa", "Resemblyzer", "moonshine-voice"):
            package_folder(name)
        kokoro()
    except UserError as error:
        pytest.skip(f"{error}; {FETCH}")
    assert clone_speech.main(arguments) == 0
    assert len(list((tmp_path / "speech").iterdir())) == 5
    assert clone_speech.main([*arguments, "--judge", "--minutes", "1e-9"]) == 0
    judged = json.loads((tmp_path / "judged.json").read_text())
    assert set(judged) == {"held000"}, "the limit of time is kept after a speaker"
    assert judged["held000"]["distillmos"] > 3
    assert judged["held000"]["errors"] <= 1
    assert clone_encoder.main(arguments) == 0
    report = tmp_path / "report.json"
    assert clone_encoder.main([*arguments, "--report", str(report)]) == 0
    rows = {(row["what"], row["competitor"]): row["figures"] for row in json.loads(report.read_text())["rows"]}
    assert rows["held-back speakers", "Resemblyzer"]["same"] > rows["held-back speakers", "Resemblyzer"]["other"]
    # the speaker to learn from has a single recording, so nothing is measured with her
    assert {group for group, _ in rows} == {"held-back speakers", "held-back style tables", "people"}
    assert len(rows) == 9


def test_a_folder_without_speech_and_a_wrong_configuration_are_one_line(tmp_path, capsys):
    for command, arguments in (
        (clone_encoder.main, []),
        (clone_speech.main, ["--config", str(tmp_path / "nothing.toml")]),
    ):
        with pytest.raises(SystemExit):
            command(["-o", str(tmp_path), *arguments])
        assert capsys.readouterr().err.count("\n") == 1
