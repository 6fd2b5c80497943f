"""Fails with one sentence where no CUDA device can be used."""

import ctypes
import sys


def trouble():
    """Why there is no usable device; None where there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "libcuda.so.1 is not installed"
    result = driver.cuInit(0)
    if result != 0:
        return f"cuInit failed with error {result}"
    count = ctypes.c_int()
    result = driver.cuDeviceGetCount(ctypes.byref(count))
    return None if result == 0 and count.value > 0 else "the driver sees no device"


if __name__ == "__main__":
    reason = trouble()
    if reason:
        sys.exit(f"make: gpu-test needs an NVIDIA GPU and there is none to use ({reason}): run it on a machine that has "
                 "one; `make test` covers the CPU.")
