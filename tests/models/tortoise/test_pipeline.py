"""Test the steps of a request: which candidates and networks it keeps in memory, and the progress that it reports."""

import gc
from dataclasses import replace

import numpy as np
import pytest

import ane
from ane.models.tortoise import pipeline
from ane.models.tortoise.chunks import TokenChunk
from ane.models.tortoise.decoding import Candidate
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.pipeline import Rendering
from ane.models.tortoise.sampling import Sampling
from ane.speech.chunks import RenderedChunk
from ane.speech.request import SpeechContext
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
    chunks = synthesizer.speak(THREE_SENTENCES, seed=4, settings=settings, progress=count).chunks
    assert len(chunks) == 3
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


def test_text_with_tokens_that_clvp_does_not_know_is_not_ranked(synthesizer):
    """Other decoders know more tokens than CLVP, whose table has 256."""
    request, context = synthesizer.request("Hi.", seed=0, settings=replace(HIFIGAN, candidates=2)), SpeechContext()
    chunk = TokenChunk("Hi.", [300, 0], voice=synthesizer.voice_of(request, context))
    codes = np.zeros(500, np.int64)
    rows = np.zeros((1, synthesizer.model.config("autoregressive").model_dim), np.float32)
    candidates = [Candidate([5], True, rows, codes, rows) for _ in range(2)]
    rendered = RenderedChunk(chunk)
    best = Rendering(synthesizer.model, synthesizer.backend, [chunk], request, context)._ranked(rendered, candidates)
    assert len(best) == 1
    assert [note.partition(":")[0] for note in rendered.notes] == ["chunk {chunks} was not ranked"]
