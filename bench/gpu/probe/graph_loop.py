"""Runs the smallest CUDA graph with a loop: a counter that is counted down on the device.

Needs warp, whose kernels want annotations that are not strings.
"""

import contextlib
from typing import Any

import warp as wp


@wp.kernel
def _count_down(  # type: ignore[no-untyped-def]
    left: wp.array(dtype=wp.int32),  # type: ignore[valid-type]
    rounds: wp.array(dtype=wp.int32),  # type: ignore[valid-type]
):
    left[0] = left[0] - 1
    rounds[0] = rounds[0] + 1


def rounds_of_loop(count: int, device: Any, stream: Any = None) -> int:
    """Counts the rounds of a captured loop that should end after `count`, on `stream` if given."""
    left: Any = wp.array([count], dtype=wp.int32, device=device)
    rounds: Any = wp.zeros(1, dtype=wp.int32, device=device)
    wp.synchronize_device(device)  # they were made on warp's own stream

    def body() -> None:
        wp.launch(_count_down, dim=1, inputs=[left, rounds], device=device)

    with contextlib.nullcontext() if stream is None else wp.ScopedStream(stream, sync_enter=False):
        wp.capture_while(left, body)  # without a capture: this loads the kernel
        left.fill_(count)
        rounds.zero_()
        with wp.ScopedCapture(device=device, stream=stream) as capture:
            wp.capture_while(left, body)
        wp.capture_launch(capture.graph, stream=stream)
    wp.synchronize_device(device)
    return int(rounds.numpy()[0])
