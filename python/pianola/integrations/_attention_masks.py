"""What transformers' models ask about an attention mask: does it mask anything at all?

They read that from the mask and choose kernels by it: a read that no graph can repeat. It depends on the batch alone, so it is
answered before the call, and the answer belongs to the signature: batches with and without padding have a graph each, with the kernels
that eager chooses.
"""

import contextlib
import contextvars
import functools
import importlib
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional

import torch


class _Mask(NamedTuple):
    """A mask of the running call: the batch's own, or what is made of it."""

    tensor: torch.Tensor
    version: int  # a mask that the model has changed is another one
    masks_nothing: bool

    def is_seen_in(self, tensor: Any) -> bool:
        """It, or a view of all of it."""
        own = self.tensor
        if not isinstance(tensor, torch.Tensor) or own._version != self.version:
            return False
        return tensor is own or (tensor.data_ptr() == own.data_ptr() and _layout(tensor) == _layout(own))


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


# Of the running call. A context variable, for it is set in the step: a global that changes there would keep the step eager.
_masks: "contextvars.ContextVar[Optional[list[_Mask]]]" = contextvars.ContextVar("masks", default=None)

Answers = tuple[tuple[str, bool], ...]


def answers_for(config: Any, inputs: Any) -> Answers:
    """The masks of a batch by name, and whether each masks nothing; empty for a model that does not ask."""
    if getattr(config, "_attn_implementation", None) in (None, "eager") or not isinstance(inputs, Mapping):
        return ()
    masks = ((name, mask) for name, mask in inputs.items() if isinstance(name, str) and name.endswith("attention_mask"))
    return tuple((name, bool(mask.all())) for name, mask in masks if isinstance(mask, torch.Tensor) and mask.ndim == 2)


@contextlib.contextmanager
def answering(inputs: Mapping[str, Any], answers: Answers) -> Iterator[None]:
    """While this is open, the step that runs has these answers."""
    token = _masks.set([_Mask(inputs[name], inputs[name]._version, masks_nothing) for name, masks_nothing in answers])
    try:
        yield
    finally:
        _masks.reset(token)


def _known(tensor: Any) -> Optional[_Mask]:
    return next((mask for mask in _masks.get() or () if mask.is_seen_in(tensor)), None)


def _about_preparing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A mask that masks nothing is gone from here on; another one is known as what it has become."""

    @functools.wraps(original)
    def prepare(config: Any, embeddings: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        early, mask, *rest = original(config, embeddings, attention_mask, *args, **kwargs)
        known = _known(attention_mask)
        if known is None or mask is None or early:
            return early, mask, *rest
        if known.masks_nothing:
            return early, None, *rest
        masks = _masks.get()
        assert masks is not None
        masks.append(_Mask(mask, mask._version, False))
        return early, mask, *rest

    return prepare


def _about_causal(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def may_be_ignored(padding_mask: Any, q_length: Any, kv_length: Any, *args: Any, **kwargs: Any) -> bool:
        if q_length == kv_length and _known(padding_mask) is not None:
            return False  # only masks that mask something come here
        return original(padding_mask, q_length, kv_length, *args, **kwargs)

    return may_be_ignored


def _about_bidirectional(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def may_be_ignored(padding_mask: Any, *args: Any, **kwargs: Any) -> bool:
        return _known(padding_mask) is None and original(padding_mask, *args, **kwargs)

    return may_be_ignored


_QUESTIONS = {
    "_preprocess_mask_arguments": _about_preparing,
    "_ignore_causal_mask_sdpa": _about_causal,
    "_ignore_bidirectional_mask_sdpa": _about_bidirectional,
}


@functools.cache
def _stand_ins() -> Optional[tuple[Any, dict[str, Any]]]:
    """transformers' module and what stands in for its functions: the same ones in each call, or each were a signature of its own."""
    try:
        module: Any = importlib.import_module("transformers.masking_utils")
        return module, {name: make(getattr(module, name)) for name, make in _QUESTIONS.items() if hasattr(module, name)}
    except ModuleNotFoundError:  # an older one, which asks elsewhere
        return None


@contextlib.contextmanager
def questions_answered() -> Iterator[None]:
    """While this is open, transformers' functions ask here first."""
    found = _stand_ins()
    if found is None:
        yield
        return
    module, stand_ins = found
    before = {name: getattr(module, name) for name in stand_ins}
    vars(module).update(stand_ins)
    try:
        yield
    finally:
        vars(module).update(before)
