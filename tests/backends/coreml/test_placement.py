"""Core ML's plan of each function, on the stand-in, which plans the default function of a package only."""

# ruff: noqa: F811  fixtures are imported

import pytest

from ane.backends.mil import Package
from ane.commands.placement import NEURAL_ENGINE, function_placement
from ane.system.errors import UserError
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.backends.coreml.native import Order
from tests.backends.coreml.packages import save_two_functions


def test_every_function_of_a_package_has_a_plan(mac, tmp_path):
    package = Package(save_two_functions(tmp_path / "both.mlpackage"))
    for name in ("double", "triple"):
        found = function_placement(package, "CPU_AND_NE", name)
        assert found.ops == {NEURAL_ENGINE: len(package.function(name).ops)}
        assert found.unknown == 0


def test_a_plan_that_core_ml_refuses_is_one_line(mac, tmp_path):
    package = Package(save_two_functions(tmp_path / "both.mlpackage"))
    mac.order(Order("plan", message="no plan today"))
    with pytest.raises(UserError, match=r"no plan for double of .*: no plan today$"):
        function_placement(package, "CPU_ONLY", "double")
