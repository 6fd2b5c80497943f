"""What torch computes at a place of a program depends on more than the operations there."""

from typing import Any

import torch


def settings_here() -> list[Any]:
    """Of attention, precision, determinism, modes and default types, as they are now: what a step may enter for some of its calls, and a
    replay of a part alone is not in."""
    core, cuda, cudnn = torch._C, torch.backends.cuda, torch.backends.cudnn
    attention = [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()]
    precision = [torch.get_float32_matmul_precision(), cuda.matmul.allow_tf32, cudnn.allow_tf32]
    choices = [core._get_mkldnn_enabled(), cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()]
    modes = [core._len_torch_function_stack(), core._len_torch_dispatch_stack(), torch.get_default_dtype()]
    return [*attention, *core._get_sdp_priority_order(), *precision, *choices, *modes]
