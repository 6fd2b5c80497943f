"""Pipeline schedules for make_graphed_callables: Transformer Engine's `_order` and what comes back for it."""

from typing import Any, Optional, Sequence, Union

from ._arguments import as_numbers
from ._errors import refuse
from ._graphed_forward import GraphedForward
from ._load import _C
from ._structure import of_arguments


def order_of(
    schedule: Optional["_C.Schedule"],
    order: Optional[Sequence[float]],
    layers_per_chunk: Union[int, Sequence[int], None],
    reuse_buffers: bool,
    callables: int,
) -> Optional["_C.Schedule"]:
    """The Schedule that the arguments name; None for any order."""
    if order is None:
        if reuse_buffers:
            refuse("_reuse_graph_input_output_buffers needs an order", "pass _order, or leave it out", kind="ConfigError")
        if layers_per_chunk is not None:
            refuse("_num_layers_per_chunk needs an order", "pass _order, or leave it out", kind="ConfigError")
        return schedule
    if schedule is not None:
        refuse("both schedule and _order were given", "give one of them", kind="ConfigError")
    numbers = as_numbers(order, "_order")
    if layers_per_chunk is not None:
        listed = [layers_per_chunk] if isinstance(layers_per_chunk, int) else layers_per_chunk
        return _C.Schedule.from_order(numbers, layers_per_chunk=as_numbers(listed, "_num_layers_per_chunk", int))
    chunks = _C.Schedule.from_order(numbers).chunks
    if callables % chunks != 0:
        refuse(
            f"_order has {chunks} chunks, and {callables} callables cannot be divided among them evenly",
            "pass _num_layers_per_chunk: how many callables each chunk has",
            kind="ScheduleError",
        )
    return _C.Schedule.from_order(numbers, layers_per_chunk=[max(callables // chunks, 1)])


def delays_weights(order: Optional["_C.Schedule"]) -> bool:
    """Whether a chunk's backwards leave the gradients of weights for later."""
    return order is not None and any(order.delays_weight_gradients(chunk) for chunk in range(1, order.chunks + 1))


def flat_index(order: "_C.Schedule", chunk: int, microbatch: int, layer: int) -> int:
    """Where Transformer Engine has a layer (from 0 in its chunk) of a microbatch (from 0): chunk by chunk, in a chunk
    microbatch by microbatch."""
    return order.first_layer(chunk) * order.microbatches + microbatch * order.layers(chunk) + layer


def samples_of_layers(samples: list, order: "_C.Schedule") -> list:
    """One sample per layer from one per layer and microbatch; they have to look alike."""
    expected = order.total_layers * order.microbatches
    if len(samples) != expected:
        refuse(
            f"_order has {order.total_layers} layers and {order.microbatches} microbatches, which need {expected} "
            f"sample_args, got {len(samples)}",
            "give the arguments of each layer for each microbatch: chunk by chunk, in a chunk microbatch by microbatch",
        )
    result = []
    for chunk in range(1, order.chunks + 1):
        for layer in range(order.layers(chunk)):
            of_layer = [samples[flat_index(order, chunk, m, layer)] for m in range(order.microbatches)]
            _check_alike(of_layer, order.first_layer(chunk) + layer)
            result.append(of_layer[0])
    return result


def _check_alike(samples: list, layer: int) -> None:
    tensors, structure = of_arguments(*samples[0])
    for microbatch, sample in enumerate(samples[1:], start=2):
        others, other = of_arguments(*sample)
        same = structure.same(other) and all(_looks_like(a, b) for a, b in zip(tensors, others))
        if not same:
            refuse(
                f"the samples of layer {layer + 1} differ between microbatch 1 and {microbatch}",
                "all microbatches of a layer share its graphs: give samples of one shape, dtype and structure",
            )


def _looks_like(one: Any, other: Any) -> bool:
    return (one.shape, one.dtype, one.device, one.requires_grad) == (
        other.shape,
        other.dtype,
        other.device,
        other.requires_grad,
    )


class MicrobatchForward:
    """One layer's forward for one microbatch; refuses to run when it is another one's turn."""

    def __init__(self, layer: Any, forward: GraphedForward, microbatch: int) -> None:
        self.layer = layer  # which need not be held by anybody else
        self.forward = forward
        self._microbatch = microbatch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.forward.is_for_graph():
            self._check_turn()
        return self.forward(*args, **kwargs)

    def _check_turn(self) -> None:
        expected = self.forward.captured.next_microbatch()
        if expected != self._microbatch:
            refuse(
                f"a call is out of the schedule's order: expected microbatch {expected} of this layer, got microbatch "
                f"{self._microbatch}; nothing was launched",
                "call the functions in the order they were captured with; after an abandoned iteration, call restart_schedule()",
                kind="ScheduleError",
            )

    @property
    def compiled(self) -> str:
        """What became of compiling the layer."""
        return self.forward.compiled

    def backward_dw(self) -> bool:
        """Computes the weight gradients that this microbatch's backward has left for later: an entry -c-0.5 of the order.

        False: nothing was left, as after calls that ran eagerly.
        """
        return self.forward.backward_dw(self._microbatch)

    def reset(self) -> None:
        """Drops the graphs of the layer, for all microbatches."""
        self.forward.reset()

    def restart_schedule(self) -> None:
        """Forgets how far this iteration came, for all layers, after one that was given up."""
        self.forward.captured.restart_schedule()

    def info(self) -> "_C.CallableInfo":
        """What the layer holds."""
        return self.forward.info()


def per_microbatch(layers: list[Any], forwards: list[GraphedForward], order: "_C.Schedule") -> tuple[MicrobatchForward, ...]:
    """One function per layer and microbatch, in the order of the samples."""
    result: list[Any] = [None] * (order.total_layers * order.microbatches)
    for chunk in range(1, order.chunks + 1):
        for layer in range(order.layers(chunk)):
            place = order.first_layer(chunk) + layer
            for microbatch in range(order.microbatches):
                result[flat_index(order, chunk, microbatch, layer)] = MicrobatchForward(
                    layers[place], forwards[place], microbatch + 1
                )
    return tuple(result)
