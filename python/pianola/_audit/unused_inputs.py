"""Inputs that require grad and that no result depends on."""

from typing import Any

import torch


class DifferentiableInputs:
    """The inputs of a call that require grad, as they are when it begins: one that is written in place has another history
    afterwards."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        self._wanted = [(i, tensor, tensor.grad_fn) for i, tensor in enumerate(inputs) if tensor.requires_grad]

    def unused(self, results: list[torch.Tensor]) -> list[int]:
        """The indices of those that no result leads back to, where some result has a history or is one of them."""
        ends = [result for result in results if result.requires_grad]
        if not self._wanted or not ends:
            return []
        returned = {id(result) for result in ends}
        nodes, leaves = _history(ends)
        # Autograd's nodes, and the tensors of leaves, are the same objects as long as somebody holds them.
        return [
            i
            for i, tensor, node in self._wanted
            if id(tensor) not in returned and id(tensor) not in leaves and (node is None or node not in nodes)
        ]


def _history(results: list[torch.Tensor]) -> tuple[set[Any], set[int]]:
    """All nodes behind the results, and the leaves whose gradients they add up."""
    nodes: set[Any] = set()
    leaves = set()
    left: list[Any] = [result.grad_fn for result in results if result.grad_fn is not None]
    while left:
        node = left.pop()
        if node in nodes:
            continue
        nodes.add(node)
        if type(node).__name__ == "AccumulateGrad":  # those of the user's functions have any attribute
            leaves.add(id(node.variable))
        left += [after for after, _ in node.next_functions if after is not None]
    return nodes, leaves
