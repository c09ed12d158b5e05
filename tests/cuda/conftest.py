import pytest

from tests.cuda.requirements import ON_ONNX, ON_TORCH, require


def onnx_problem(name: str) -> str:
    from ane.backends.onnx.providers import DEVICES, load_error
    from ane.system.errors import UserError

    try:
        reason = load_error(DEVICES[name])
    except UserError as error:
        return str(error)
    return reason and f"ONNX Runtime's {DEVICES[name].short_name} does not load here: {reason}"


@pytest.fixture(scope="session")
def torch_on_cuda() -> None:
    from ane.backends.torch.device import cuda_problem

    problem = cuda_problem()
    require(problem.message if problem else "", ON_TORCH)


@pytest.fixture(scope="session")
def onnx_on_cuda() -> None:
    require(onnx_problem("cuda"), ON_ONNX)


@pytest.fixture(scope="session")
def onnx_on_tensorrt() -> None:
    require(onnx_problem("tensorrt"), ON_ONNX)
