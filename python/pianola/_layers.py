"""`pianola.graph_layers`: the layers of a model, each graphed by itself; the loop around them stays as it is."""

import functools
import logging
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from torch import nn

from ._errors import refuse
from ._find_layers import Which, check_model, find_layers
from ._graph_pool import GraphPoolFamily
from ._graphed import GraphedFunction, graphed
from ._load import _C
from ._patching import replacement

if TYPE_CHECKING:
    from ._options import GraphedOptions, Unpack

_log = logging.getLogger("pianola")


class GraphedLayers:
    """The graphed layers of a model, by name. Made by `pianola.graph_layers`."""

    def __init__(self, layers: dict[str, GraphedFunction]) -> None:
        self._layers = layers

    @property
    def names(self) -> tuple[str, ...]:
        """As in model.named_modules(), in that order."""
        return tuple(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __getitem__(self, name: str) -> GraphedFunction:
        """What stands in the place of a layer's forward."""
        if name not in self._layers:
            refuse(f"no graphed layer has the name '{name}'", "names has all", where="GraphedLayers")
        return self._layers[name]

    def info(self) -> "_C.LayersInfo":
        """A line for each layer when printed: state, graphs, replays, eager calls; and why calls stay eager."""
        return _C.LayersInfo([(name, layer.info()) for name, layer in self._layers.items()])

    def backward_dw(self) -> bool:
        """With `delay_weight_gradients`: `backward_dw()` of each layer, from the last to the first. Once for each backward through
        all. False: none had left anything."""
        return any([layer.backward_dw() for layer in reversed(self._layers.values())])

    def reset_all(self) -> None:
        """Drops the graphs of all layers; their next calls warm up again, and are captured as things are then."""
        for layer in self._layers.values():
            layer.forget_graphs()

    def remove(self) -> None:
        """Drops the graphs, and gives the layers their own forward back."""
        for layer in self._layers.values():
            layer.reset()


class _Teller:
    """Tells each reason once, however many layers have it."""

    def __init__(self, listener: Optional[Callable[[str], Any]]) -> None:
        self._listener = listener
        self._told: set[str] = set()

    def tell(self, name: str, reason: str) -> None:
        if self._listener is not None:
            self._listener(f"{name}: {reason}")
        elif (alike := reason.partition(" stay eager: ")[2] or reason) not in self._told:
            self._told.add(alike)
            _log.warning("layer %s runs eagerly: %s", name, reason)


def graph_layers(model: nn.Module, layers: Which = None, **options: "Unpack[GraphedOptions]") -> GraphedLayers:
    """Graphs the layers of a model one by one. The training loop stays as it is.

        layers = pianola.graph_layers(model)
        ...                                      # train, evaluate, generate
        print(layers.info())

    Each layer warms up, is captured, replayed, and falls back to eager by itself, as with `pianola.graphed`: in training and in
    evaluation, for each shape, and with as many microbatches between forward and backward as there are. What lies between the layers
    (embeddings, the loss, the optimizer, code that reads values) stays eager.

    Args:
        model: its layers are patched in place, as modules of it; all else of it stays.
        layers: which: names with wildcards ("h.*"), classes, modules, a function of name and module that says whether it is one, or a
            list of these. None: the members of the outermost lists of two or more modules of one class, in which transformers, ResNets
            and their like keep their blocks. Of modules inside of each other the outer one is taken.
        options: as for `pianola.graphed`. `max_in_flight` is 8 here: graphs are made for as many microbatches as come, up to that. The
            layers' graphs run one after the other, in pools of one GraphPoolFamily.

    Raises:
        UsageError: no module is meant, or one of them is graphed already.
    """
    check_model(model, "graph_layers")
    found = find_layers(model, layers)
    for name, module in found:
        if hasattr(replacement(module), "info"):
            refuse(f"layer {name} is graphed already", "call remove() of what graphed it first", where="graph_layers")
    teller = _Teller(options.pop("on_fallback", None))
    family = GraphPoolFamily()
    made: dict[str, GraphedFunction] = {}
    try:
        for name, module in found:
            own: Any = {"max_in_flight": 8, "pool": family, **options, "on_fallback": functools.partial(teller.tell, name)}
            made[name] = replacement(graphed(module, **own))
    except BaseException:
        GraphedLayers(made).remove()
        raise
    return GraphedLayers(made)
