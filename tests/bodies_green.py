"""What threads on green contexts do, in a process with the fake driver."""

import os
import signal

import gmi_drl


class Where:
    """Tells on which SMs work of this GMI runs."""

    def __init__(self, spec):
        self.spec = spec

    def place(self):
        import torch
        from cuda.bindings import driver

        stream = torch.cuda.current_stream().cuda_stream
        return os.getpid(), set(driver.fake_sms(stream)), os.sched_getaffinity(0)

    def die_once(self, path):
        """Killed at the first time; then where it is."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return self.place()
        os.kill(os.getpid(), signal.SIGKILL)

    def green_streams(self):
        """Whether this GMI's stream, one of torch's own, and the default one are green."""
        import torch
        from cuda.bindings import driver

        from gmi_drl.gmi.backends.green import is_green

        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        _, plain = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        mine = torch.cuda.current_stream().cuda_stream
        return is_green(mine), is_green(int(plain)), is_green(0)

    def events(self):
        """Names of what recording says: an event of the primary context, and one of the green, on
        this GMI's stream; then what the default stream says to waiting for the green one's."""
        import torch
        from cuda.bindings import driver

        _, mine = driver.cuStreamGetCtx(torch.cuda.current_stream().cuda_stream)
        said = []
        for context in (driver.cuDevicePrimaryCtxRetain(0)[1], mine):
            driver.cuCtxSetCurrent(context)
            _, event = driver.cuEventCreate(0)
            said.append(driver.cuEventRecord(event, torch.cuda.current_stream().cuda_stream)[0])
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        said.append(driver.cuStreamWaitEvent(driver.CUstream(0), event, 0)[0])
        return [code.name for code in said]

    def wander(self):
        """Verifies after something has moved the thread to another stream."""
        import torch

        from gmi_drl.gmi import backend_of
        from gmi_drl.placement import Device

        torch.cuda.set_stream(torch.cuda.ExternalStream(0))
        backend_of("green").verify(
            self.spec, Device(0, "gpu", "H", (), sm_count=132, capability=(9, 0))
        )


class Placed(gmi_drl.DRL_role):
    """Gives its process, its SMs, the sum of all GMIs' ids, and what torch was told of memory."""

    def GMI_run(self):
        import torch
        from cuda.bindings import driver, fake_green

        stream = torch.cuda.current_stream().cuda_stream
        total = self.mgr.allreduce(float(self.GMI_id), op="sum")
        return os.getpid(), driver.fake_sms(stream), total, set(fake_green.fractions)


class Greedy(gmi_drl.DRL_role):
    """Asks for more than the GPU has: what torch's allocator would raise."""

    def GMI_run(self):
        import torch

        if self.GMI_id:
            return
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB.\nMore.")
