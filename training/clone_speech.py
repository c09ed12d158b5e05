"""Make speech of many speakers with Kokoro, and judge how natural and clear each speaker is.

    python -m training.clone_speech -o clone/ --minutes 60            # goes on where the last call stopped
    python -m training.clone_speech -o clone/ --judge --minutes 10    # goes on judging

``training.clone_speakers`` defines the speakers.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from ane.models.tortoise.checkpoints import packaged_file
from ane.system.files import write_json
from ane.text import normalise_english
from benchmarks.listening import edits, words
from benchmarks.teachers import kokoro_audio
from benchmarks.yardsticks import DistillMos, WhisperRecogniser
from training.clone_speakers import CONFIG, CloneConfig, MixedSpeaker, kokoro_tables, read_config, speakers_of
from training.program import TrainingProgram
from training.speech import RATE, Shard, Speak, shard_of
from training.text import held_out_sentences, texts_of_a_voice

log = logging.getLogger(__name__)


def kokoro_voice(speaker: MixedSpeaker) -> Speak:
    """Return the voice of a speaker, which Kokoro in int8 speaks on one thread."""
    style = speaker.style()
    return lambda text: kokoro_audio(text, style)


@dataclass(frozen=True)
class SpeakerRecording:
    """A recording of a speaker: its file and its texts."""

    path: Path
    speaker: MixedSpeaker
    texts: list[str]


def recordings_of(
    folder: Path, config: CloneConfig, speakers: Sequence[MixedSpeaker], texts: Sequence[str]
) -> list[SpeakerRecording]:
    """List the recordings in the order in which they are made: those of held-back speakers, then those to learn from.

    First every speaker makes one recording, then every speaker makes a second one, so a call that stops early leaves
    about as much speech of every speaker. The first recording has held-out sentences, which judge the speaker.
    """
    counts, sentences, recordings = config.speakers, held_out_sentences(), []
    for held_back, rounds in ((True, counts.held_back_recordings), (False, counts.recordings)):
        for place in range(rounds):
            for index, speaker in enumerate(speakers):
                if speaker.held_back is held_back:
                    source, size = (texts, counts.texts) if place else (sentences, config.gate.sentences)
                    first = (max(place - 1, 0) * len(speakers) + index) * size
                    some = [source[(first + number) % len(source)] for number in range(size)]
                    recordings.append(SpeakerRecording(folder / f"{speaker.name}-{place}.npz", speaker, some))
    return recordings


def write_recordings(
    recordings: Sequence[SpeakerRecording], voice: Callable[[MixedSpeaker], Speak], minutes: float | None
) -> None:
    """Write the recordings whose files are missing, one file after another, until the time limit."""
    mel_norms = load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]
    missing = [recording for recording in recordings if not recording.path.exists()]
    started, seconds = time.monotonic(), 0.0
    for count, recording in enumerate(missing, 1):
        shard = shard_of(recording.texts, voice(recording.speaker), mel_norms)
        shard.save(recording.path)
        seconds, passed = seconds + shard.hours * 3600, time.monotonic() - started
        if count % 10 == 0 or count == len(missing):
            log.info("%d of %d recordings  %.0f s of speech in %.0f s", count, len(missing), seconds, passed)
        if minutes is not None and passed > 60 * minutes:
            break


def judge_speakers(folder: Path, speakers: Sequence[MixedSpeaker], minutes: float | None) -> None:
    """Judge the first recording of every speaker who has not been judged, and write FOLDER/judged.json.

    Held-back speakers and speakers to learn from take turns.
    """
    judged, started = judgements(folder), time.monotonic()
    waiting = [
        (speaker.name, path)
        for speaker in sorted(speakers, key=lambda speaker: speaker.name[-3:])
        if speaker.name not in judged and (path := folder / "speech" / f"{speaker.name}-0.npz").exists()
    ]
    if not waiting:
        return
    recogniser, distillmos = WhisperRecogniser(), DistillMos()
    for name, path in waiting:
        shard = Shard.load(path)
        silence = np.zeros(RATE // 3, np.float32)
        joined = np.concatenate([part for clip in shard.clips for part in (clip, silence)])
        transcript = recogniser.transcribe(joined, RATE)
        expected = words(normalise_english(" ".join(shard.texts)))
        judged[name] = {
            "distillmos": float(np.mean([distillmos.score(clip, RATE) for clip in shard.clips])),
            "errors": edits(expected, words(normalise_english(transcript))),
            "words": len(expected),
        }
        write_json(folder / "judged.json", judged)
        log.info("%s: %s", name, judged[name])
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            break


def judgements(folder: Path) -> dict[str, dict[str, float]]:
    """Read the measurements of the speakers who have been judged, by name."""
    path = folder / "judged.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def make_speech(options: argparse.Namespace) -> None:
    config, folder = read_config(options.config), options.output
    speakers = speakers_of(config, kokoro_tables())
    (folder / "speech").mkdir(parents=True, exist_ok=True)
    if options.judge:
        judge_speakers(folder, speakers, options.minutes)
    else:
        count = config.speakers.different_texts
        texts = texts_of_a_voice(folder / "texts.txt", options.wordnet, count, config.seed)
        recordings = recordings_of(folder / "speech", config, speakers, texts)
        write_recordings(recordings, kokoro_voice, options.minutes)


def main(arguments: list[str] | None = None) -> int:
    program = TrainingProgram("training.clone_speech", __doc__, CONFIG, "stop after N minutes")
    program.add_argument("--judge", action="store_true", help="judge the speakers instead of making speech")
    program.add_wordnet()
    return program.run(make_speech, arguments)


if __name__ == "__main__":
    sys.exit(main())
