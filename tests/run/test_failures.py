"""What torch, gloo and NCCL say when something goes wrong, and what the user is told."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import DistBackendError

from declarative_train.engine.failures import describe_failure, describe_silent_ranks, explain

NCCL = """NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled {kind} (run with NCCL_DEBUG=INFO \
for details), NCCL version 2.28.9
{name}: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
{last}"""


def of_nccl(name: str, last: str) -> DistBackendError:
    return DistBackendError(NCCL.format(kind="system error", name=name, last=last))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            of_nccl("ncclSystemError", "Error while creating shared memory segment /dev/shm/nccl-Fy4Wc8 (size 96)"),
            "NCCL: Error while creating shared memory segment /dev/shm/nccl-Fy4Wc8 (size 96); help: raise "
            "the container's /dev/shm: docker run --shm-size=8g, or --ipc=host",
        ),
        (
            of_nccl("ncclInvalidUsage", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"),
            "NCCL: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000; help: two ranks have the",
        ),
        (of_nccl("ncclInternalError", ""), "NCCL: ncclInternalError: System call"),
    ],
)
def test_nccls_own_error_is_told_by_its_last_words(error: DistBackendError, said: str) -> None:
    failure = describe_failure(error, 1, None, 0)
    assert failure.message.startswith(said)
    assert not failure.is_peer_loss
    assert not failure.is_ours


@pytest.mark.parametrize(
    "error",
    [
        of_nccl("ncclRemoteError", "socketProgress: Connection closed by remote peer node2<40001>"),
        of_nccl("ncclSystemError", "socketProgress: Connection closed by remote peer node2<40001>"),
        DistBackendError("NCCL communicator was aborted on rank 0."),
    ],
)
def test_an_error_of_nccl_may_be_the_echo_of_another_rank(error: DistBackendError) -> None:
    assert describe_failure(error, 0, None, 3).is_peer_loss


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        of_nccl("ncclUnhandledCudaError", "Cuda failure 2 'out of memory'"),
    ],
)
def test_memory_is_said_to_be_out_whoever_asked_for_it(error: RuntimeError) -> None:
    assert "out of memory" in explain(error)
    assert "gradient_accumulation_steps" in explain(error)


def test_ranks_that_report_nothing_are_named_where_all_others_wait() -> None:
    victims = [describe_failure(RuntimeError("Timed out waiting 3000ms for recv"), rank, None, 6) for rank in (0, 2)]
    assert describe_silent_ranks(victims, 5) == "ranks 1, 3 to 4 did not answer; rank 0, step 6: " + victims[0].message
    assert describe_silent_ranks(victims[:1], 2) == "rank 1 did not answer; rank 0, step 6: " + victims[0].message
    assert describe_silent_ranks([victims[0], describe_failure(RuntimeError("timed out"), 1, None, 6)], 2) is None
    assert describe_silent_ranks([*victims, describe_failure(ValueError(), 1, None, 6)], 5) is None


def test_an_operation_without_a_deterministic_form() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as found:
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
    finally:
        torch.use_deterministic_algorithms(False)
    assert explain(found.value).startswith("`put_` is not deterministic on this device, but training.determin")


def test_a_gpu_without_virtual_memory() -> None:
    error = RuntimeError("CUDA driver error: operation not supported\nException raised from map")
    found = explain(error)
    assert found.startswith("CUDA driver error: operation not supported; help: ")
    assert found.endswith("needs PYTORCH_ALLOC_CONF=expandable_segments:False")
