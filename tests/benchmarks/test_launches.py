"""Which operations the benchmark counts."""

import torch

from benchmarks.launches import CountedOperations


def test_operations_that_compute_or_copy_are_counted_and_views_and_allocations_are_not():
    x = torch.ones(2, 3)
    with CountedOperations() as counted:
        rows = x.view(3, 2).transpose(0, 1)[:, :2]
        sums = rows + 1
        sums.add_(1)
        torch.empty(4)
        x.copy_(torch.ones_like(x))
    assert dict(counted.found) == {"operations": 4}
