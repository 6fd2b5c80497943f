"""Results of functional collectives, which wait for their collective where they are first used."""

import sys
from typing import Any

from ._structure import with_leaves

_MODULE = "torch.distributed._functional_collectives"  # loaded late by torch, and not in every build


def waited_for(tree: Any) -> Any:
    """With the tensors themselves in the place of those that wait, and have no history."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return tree
    waits = module.AsyncCollectiveTensor
    return with_leaves(tree, lambda leaf: type(leaf) is waits and not leaf.requires_grad, lambda leaf: leaf.trigger_wait())
