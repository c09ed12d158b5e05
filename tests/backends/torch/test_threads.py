"""Test that torch uses fewer threads while other work on the machine would make them wait for cores."""

import builtins
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ane.backends.torch import threads
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.threads import ThreadGovernor, choose_threads, seconds_waiting
from tests.random_model import random_model


class SharedMachine:
    """Cores that threads of this process and of others share, and a clock.

    Attributes:
        cores: that other programs leave to this process.
    """

    def __init__(self, cores: float):
        self.cores, self.now, self.waited, self.idled = cores, 0.0, 0.0, 0.0
        self.governor = ThreadGovernor(lambda: self.waited, lambda: self.idled, lambda: self.now)

    def compute(self, seconds: float) -> list[int]:
        """Calls of 10 ms, one after the other; returns the number of threads of each."""
        counts = []
        for _ in range(round(100 * seconds)):
            call = self.governor.begin()
            counts.append(torch.get_num_threads())
            self.now += 0.01
            self.waited += 0.01 * max(0.0, counts[-1] - self.cores)
            self.idled += 0.01 * max(0.0, self.cores - counts[-1])
            self.governor.end(call)
        return counts


@pytest.fixture(autouse=True)
def four_threads():
    torch.set_num_threads(4)


def test_a_machine_without_other_work_keeps_all_threads():
    assert set(SharedMachine(4).compute(5)) == {4}


def test_reading_the_waits_of_many_threads_takes_a_small_part_of_the_time():
    machine = SharedMachine(4)
    spent = []

    def read() -> float:
        spent.append(0.004)  # about the time for 256 threads
        machine.now += spent[-1]
        return 0.0

    machine.governor = ThreadGovernor(read, lambda: 0.0, lambda: machine.now)
    machine.compute(5)
    assert len(spent) > 5
    assert sum(spent) <= 0.03 * 5


def test_other_work_of_a_moment_takes_no_thread_away():
    machine = SharedMachine(4)
    for _ in range(20):
        machine.waited += 0.015  # one thread waited 15 ms
        assert set(machine.compute(0.2)) == {4}


@pytest.mark.parametrize(("cores", "expected"), [(3, 3), (2, 2), (1.5, 1), (0.5, 1)])
def test_threads_that_wait_for_cores_are_given_up_within_a_few_calls(cores, expected):
    counts = SharedMachine(cores).compute(2)
    assert counts[12] == counts[40] == expected


def test_threads_come_back_when_the_other_programs_end_and_later_ones_are_noticed_as_soon():
    machine = SharedMachine(1)
    assert machine.compute(2)[-1] == 1
    machine.cores = 4
    assert machine.compute(2)[-1] == 4
    machine.cores = 1
    for _ in range(20):
        machine.idled += 1.0
        machine.compute(1)
    machine.cores = 4
    assert machine.compute(20)[-1] == 4
    machine.cores = 1
    assert machine.compute(1)[12] == 1


def test_what_was_raised_in_vain_is_tried_again_ever_more_rarely():
    machine = SharedMachine(1)
    machine.compute(1)
    raised = []
    for _ in range(60):  # every second, the other work pauses just long enough to be missed
        machine.idled += 1.0
        raised.append(max(machine.compute(1)) > 1)
    assert raised[0]
    assert sum(raised[30:]) < sum(raised[:30])


def test_who_sets_the_number_on_a_thread_sets_the_most_there():
    machine = SharedMachine(8)
    torch.set_num_threads(2)
    assert set(machine.compute(1)) == {2}
    machine.cores = 1
    assert machine.compute(1)[-1] == 1
    torch.set_num_threads(3)
    machine.cores = 8
    assert machine.compute(2)[-1] == 3


def kept(machine: SharedMachine) -> int:
    """The number of threads of a call that keeps them."""
    call = machine.governor.begin(fixed_thread_count=True)
    try:
        return torch.get_num_threads()
    finally:
        machine.governor.end(call)


def test_a_call_that_keeps_its_threads_has_them_beside_others_that_give_them_up():
    machine = SharedMachine(1)
    assert machine.compute(1)[-1] == 1
    assert kept(machine) == 4
    assert machine.compute(0.01) == [1]


def on_a_new_thread(call: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_thread_that_torch_meets_while_the_number_is_lowered_has_what_was_chosen():
    """torch gives a new thread the number that was set last, on any thread."""
    machine = SharedMachine(1)
    assert machine.compute(1)[-1] == 1
    others = SharedMachine(4)  # a second backend with its own governor
    call = machine.governor.begin()
    assert torch.get_num_threads() == 1
    assert on_a_new_thread(lambda: kept(others)) == 4
    assert on_a_new_thread(lambda: others.compute(0.01)[0]) == 4
    machine.governor.end(call)
    assert others.compute(0.01) == [4], "of a thread that the other governor has lowered"


@pytest.mark.parametrize("number", [1, 3])
def test_a_number_that_a_program_sets_after_a_lowered_call_holds_on_every_thread(number):
    """1 is the number that the governor has set last, too."""
    machine = SharedMachine(1)
    assert machine.compute(1)[-1] == 1
    assert torch.get_num_threads() == 4, "what a program asks for between two calls"
    torch.set_num_threads(number)
    assert kept(machine) == on_a_new_thread(lambda: kept(machine)) == number
    assert on_a_new_thread(torch.get_num_threads) == number


@pytest.mark.parametrize("number", [1, 2])
def test_a_number_that_is_chosen_on_a_new_thread_holds_there(number):
    """torch replaces what is set in a thread before its first call there, by the number that was set last elsewhere."""
    machine = SharedMachine(1)
    machine.compute(1)

    def chosen() -> int:
        choose_threads(number)
        machine_of_thread = SharedMachine(4)
        on_a_new_thread(lambda: machine.compute(0.01)[0])
        return machine_of_thread.compute(0.01)[0]

    assert on_a_new_thread(chosen) == number


def test_where_the_system_does_not_tell_nothing_is_changed():
    def unknown() -> float:
        raise FileNotFoundError

    assert not ThreadGovernor(unknown, unknown).active


class EndedThread:
    """The file of a thread that ended after it was opened: Linux answers ESRCH."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read(self):
        raise ProcessLookupError(3, "No such process")


def test_a_thread_that_ends_before_its_file_is_opened_or_while_it_is_read_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "TASKS", tmp_path)
    files = [tmp_path / task / "schedstat" for task in "12"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"7 {file.parent.name}000000000 9\n")
    assert seconds_waiting() == 3.0

    def opened(name, mode):
        return EndedThread() if name == str(files[0]) else builtins.open(name, mode)

    with monkeypatch.context() as patch:
        patch.setattr(threads, "open", opened, raising=False)
        assert seconds_waiting() == 2.0
    files[0].unlink()
    assert seconds_waiting() == 2.0


def test_every_call_of_a_network_on_the_cpu_is_governed():
    backend = TorchBackend(random_model(), "cpu")
    assert isinstance(backend.governor, ThreadGovernor)
    calls = []
    backend.governor = SimpleNamespace(
        active=True, begin=lambda fixed_thread_count: calls.append(fixed_thread_count), end=lambda began: None
    )
    decoder = backend.decoder(1, 4)
    columns = np.zeros((3, 64), np.float32)
    decoder.prefill(columns)
    decoder.step(columns[None, :1], np.zeros(1, np.int64))
    assert calls == [False, False]


@pytest.mark.parametrize(("threads", "keeps"), [(None, False), (2, True)])
def test_who_names_a_number_of_threads_keeps_the_bits_of_the_sound(threads, keeps):
    assert TorchBackend(random_model(), "cpu", threads=threads).fixed_thread_count is keeps
