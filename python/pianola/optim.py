"""Optimizers, learning rates and averages whose state is on the device, so that a whole training step can be captured.

    optimizer = pianola.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = LearningRateSchedule(optimizer, LearningRate.warmup(100, LearningRate.cosine(10_000)))

The arguments are those of torch.optim's optimizers of the same names, and the steps have the bits of theirs with
fused=True, capturable=True and the learning rate in a float32 tensor.
"""

from typing import Any, Dict, Iterable, List, Tuple, Union

import torch

from ._load import _C

DeviceLearningRateSchedule = _C.DeviceLearningRateSchedule
ExponentialMovingAverage = _C.ExponentialMovingAverage
LearningRate = _C.LearningRate
LearningRateSchedule = _C.LearningRateSchedule
Optimizer = _C.Optimizer

__all__ = [
    "Adam",
    "AdamW",
    "DeviceLearningRateSchedule",
    "ExponentialMovingAverage",
    "LearningRate",
    "LearningRateSchedule",
    "Optimizer",
    "SGD",
]

Parameters = Union[Iterable[torch.Tensor], Iterable[Tuple[str, torch.Tensor]], Iterable[Dict[str, Any]]]
_Group = Tuple[List[torch.Tensor], Dict[str, Any]]


class SGD(_C.SGD):
    """Stochastic gradient descent; see torch.optim.SGD for the arguments."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(_groups(params, defaults))


class Adam(_C.Adam):
    """Adam; see torch.optim.Adam for the arguments."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(_groups(params, defaults))


class AdamW(_C.AdamW):
    """Adam with decoupled weight decay; see torch.optim.AdamW for the arguments.

    scheduled_weight_decay: keep the weight decay on the device as `weight_decay(group)`, where a schedule can write
        it. Parameters then differ in the last bits, because they decay before the fused operation.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        scheduled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "scheduled_weight_decay": scheduled_weight_decay,
        }
        super().__init__(_groups(params, defaults))


def _groups(params: Parameters, defaults: Dict[str, Any]) -> List[_Group]:
    """Tensors, (name, tensor) pairs, or dicts of groups, as torch.optim takes them."""
    if isinstance(params, torch.Tensor):
        raise TypeError("params must be an iterable of tensors or of dicts, got a tensor")
    given: List[Any] = list(params)
    if not given or not isinstance(given[0], dict):
        return [(_tensors(given), defaults)]
    return [_group(group, defaults) for group in given]


def _group(group: Dict[str, Any], defaults: Dict[str, Any]) -> _Group:
    unknown = sorted(set(group) - {"params", *defaults})
    if unknown or "params" not in group:
        accepted = ", ".join(["params", *defaults])
        wrong = f"got {', '.join(unknown)}" if unknown else "params is missing"
        raise TypeError(f"a parameter group may have {accepted}; {wrong}")
    params = group["params"]
    tensors = [params] if isinstance(params, torch.Tensor) else _tensors(params)
    return tensors, {name: group.get(name, default) for name, default in defaults.items()}


def _tensors(given: Iterable[Any]) -> List[torch.Tensor]:
    return [item[1] if isinstance(item, tuple) else item for item in given]
