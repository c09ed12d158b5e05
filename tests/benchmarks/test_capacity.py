"""The simulated cluster of `python -m benchmarks capacity` does all the work, in no less time than it can take."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.capacity import MeasuredChunks, Trouble, simulate

MEASURED = MeasuredChunks(speak=[1.0, 2.0, 4.0], sound=[3.0, 3.0, 3.0], keep=[0.01, 0.01, 0.02], load=5.0)


def test_one_worker_takes_the_time_of_all_chunks():
    job = simulate(MeasuredChunks([2.0], [3.0], [0.5], 5.0), 100, 1, Trouble(), 0)
    assert job.seconds == 5.0 + 100 * 2.5
    assert (job.sound, job.repeated) == (300.0, 0)


@settings(max_examples=40, deadline=None)
@given(chunks=st.integers(1, 200), workers=st.integers(1, 300), hours=st.sampled_from([0.005, 0.1, float("inf")]),
       seed=st.integers(0, 99))
def test_a_job_ends_with_all_its_sound_and_no_sooner_than_it_can(chunks, workers, hours, seed):
    job = simulate(MEASURED, chunks, workers, Trouble(0.1, 2.0, hours), seed)
    assert job.sound == 3.0 * chunks
    assert job.seconds >= 5.0 + max(chunks * 1.0 / workers, chunks * 0.01)
    assert job.repeated == 0 or hours < float("inf")
    assert job == simulate(MEASURED, chunks, workers, Trouble(0.1, 2.0, hours), seed)
