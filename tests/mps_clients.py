"""GMIs under MPS on one fake GPU: their slices, and processes that take them."""

import contextlib
import os
from datetime import timedelta

import bodies_mps
import fake_gpus
from fork_context import CONTEXT
from gmi_drl.gmi import backend_of

ONE = fake_gpus.topology()
GPU = ONE.devices[0]
HALVES = fake_gpus.specs("mps", ONE, sm_percent=50, mem_bytes=8 * fake_gpus.GIB)
SHORT = timedelta(seconds=0.2)  # for what hangs


@contextlib.contextmanager
def prepared(gmis=HALVES, machine=ONE):
    slices = backend_of("mps").prepare(gmis, machine)
    try:
        yield slices
    finally:
        slices.release()


@contextlib.contextmanager
def client(slices, spec, *body, **more):
    """A process of the GMI; yields it, what it says first, and its connection."""
    receive, send = CONTEXT.Pipe(duplex=False)
    environment = slices.environment(spec) | {"FAKE_CUDA": os.environ["FAKE_CUDA"]} | more
    process = CONTEXT.Process(target=bodies_mps.client, args=(spec, GPU, environment, send, *body))
    process.start()
    send.close()
    try:
        assert receive.poll(30)
        yield process, receive.recv(), receive
    finally:
        process.kill()
        process.join()
        receive.close()


def seen(slices, spec=HALVES[0], **more):
    """What a process of the GMI saw: whether it is a client, and its SMs; or the error's text."""
    with client(slices, spec, **more) as (_, first, _):
        return first
