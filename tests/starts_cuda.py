"""A module that starts the driver when it is imported, as triton might."""

from gmi_drl.gmi import cuda_driver

cuda_driver.start()
