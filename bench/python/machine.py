"""The machine as pianola_bench describes it (bench/machine.cpp), for results that Python measured."""

import os
import platform
from pathlib import Path

import pianola
import torch


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def kernel_driver():
    """"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...": the first word that is a number."""
    file = Path("/proc/driver/nvidia/version")
    words = file.read_text().splitlines()[0].split() if file.exists() else []
    return next((word for word in words if not word.strip("0123456789.")), "unknown")


def describe_device():
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "device_memory": f"{properties.total_memory / (1 << 30):.0f} GiB",
        "driver": kernel_driver(),
        "cuda": torch.version.cuda,
    }


def describe_machine():
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "torch_threads": str(torch.get_num_threads()),
        "pianola": pianola.__version__,
        "torch": torch.__version__.split("+")[0],
        **describe_device(),
        "python": platform.python_version(),
    }
