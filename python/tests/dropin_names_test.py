"""Each name of torch's that pianola.compat() stands for has been decided about, and the drop-in has it as the installed torch.

Fails with a torch that has a new one: decide, write it into DECISIONS, and test what was decided.
"""

import inspect

import pytest
import torch

from pianola import _compat
from pianola._torch_abi import in_torchs_order

HAS = "does what torch's does"
REFUSED = "is refused by a sentence that says what to do instead"
IGNORED = "is refused where torch would do something, and does nothing where torch does nothing"
TORCHS = "stays torch's, which serves both"

ARGUMENTS_OF_GRAPHED = ("callables", "sample_args", "num_warmup_iters", "allow_unused_input", "pool", "capture_error_mode")
OF_ALL_GRAPHS = ("capture_start", "capture_end", "instantiate", "replay_start", "replay_end", "destroy")

# Names and arguments of 2.11 to 2.15.
DECISIONS = {
    "CUDAGraph": HAS,
    "CUDAGraph(keep_graph)": HAS,
    "CUDAGraph.begin_capture_to_if_node": REFUSED,
    "CUDAGraph.begin_capture_to_while_node": REFUSED,
    "CUDAGraph.capture_begin": HAS,
    "CUDAGraph.capture_begin(pool)": HAS,
    "CUDAGraph.capture_begin(capture_error_mode)": HAS,
    "CUDAGraph.capture_begin(check_input_liveness)": HAS,
    "CUDAGraph.capture_end": HAS,
    "CUDAGraph.capture_end_post": HAS,
    "CUDAGraph.capture_end_pre": HAS,
    "CUDAGraph.debug_dump": HAS,
    "CUDAGraph.debug_dump(debug_path)": HAS,
    "CUDAGraph.debug_dump(verbose)": HAS,
    "CUDAGraph.enable_debug_mode": HAS,
    "CUDAGraph.end_capture_to_conditional_node": REFUSED,
    "CUDAGraph.get_currently_capturing_graph": TORCHS,
    "CUDAGraph.get_graph_data": HAS,  # on CUDA; refused on the tape
    "CUDAGraph.instantiate": HAS,
    "CUDAGraph.pool": HAS,
    "CUDAGraph.pools": HAS,
    "CUDAGraph.raw_cuda_graph": HAS,
    "CUDAGraph.raw_cuda_graph_exec": HAS,
    "CUDAGraph.register_capture_end_hook": HAS,
    "CUDAGraph.register_capture_end_hook(hook)": HAS,
    "CUDAGraph.register_capture_start_hook": HAS,
    "CUDAGraph.register_capture_start_hook(hook)": HAS,
    "CUDAGraph.register_destroy_callback": HAS,
    "CUDAGraph.register_destroy_callback(cb)": HAS,
    "CUDAGraph.register_destroy_callback(synchronize_before_release)": HAS,
    "CUDAGraph.register_generator_state": HAS,
    "CUDAGraph.register_post_instantiate_hook": HAS,
    "CUDAGraph.register_post_instantiate_hook(hook)": HAS,
    "CUDAGraph.register_replay_end_hook": HAS,
    "CUDAGraph.register_replay_end_hook(hook)": HAS,
    "CUDAGraph.register_replay_start_hook": HAS,
    "CUDAGraph.register_replay_start_hook(hook)": HAS,
    "CUDAGraph.replay": HAS,
    "CUDAGraph.reset": HAS,
    "CUDAGraph.retain_object": HAS,
    "CUDAGraph.retain_object(obj)": HAS,
    "CUDAGraph.retain_object(synchronize_before_release)": HAS,
    "CUDAGraph.set_conditional_handle_for_current_node": REFUSED,
    "export_dot": HAS,
    "export_dot(path)": HAS,
    "export_dot(verbose)": HAS,
    "export_graph_data": TORCHS,  # asks get_graph_data()
    "graph": HAS,
    "graph(annotation_config)": IGNORED,
    "graph(capture_error_mode)": HAS,
    "graph(check_input_liveness)": HAS,
    "graph(cuda_graph)": HAS,
    "graph(enable_annotations)": IGNORED,
    "graph(pool)": HAS,
    "graph(stream)": HAS,
    "graph.default_capture_stream": HAS,
    "graph_pool_handle": TORCHS,
    "is_current_stream_capturing": TORCHS,
    "make_graphed_callables": HAS,
    **{f"make_graphed_callables({name})": HAS for name in ARGUMENTS_OF_GRAPHED},
    "make_graphed_callables(enable_annotations)": IGNORED,
    **{f"register_graph_{moment}_hook": TORCHS for moment in OF_ALL_GRAPHS},
}


def function_of(one):
    """Where it is a class, what makes one of it: __init__, where that is Python's."""
    return one.__init__ if inspect.isclass(one) and inspect.isfunction(one.__init__) else one


def arguments_of(one):
    """{name: parameter}; none where it is C's and tells of none."""
    try:
        parameters = inspect.signature(function_of(one)).parameters
    except (TypeError, ValueError):
        return {}
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in parameters.items() if name != "self" and each.kind not in unnamed}


def names_of(name, one):
    """{name, or name(argument): what it stands for} of a function or class and of its public members."""
    found = {name: one, **{f"{name}({each})": parameter for each, parameter in arguments_of(one).items()}}
    if inspect.isclass(one):
        for member in sorted(set(dir(one)) - set(dir(object))):
            if not member.startswith("_"):
                found |= names_of(f"{name}.{member}", getattr(one, member))
    return found


def of_torch():
    """All that torch.cuda.graphs makes public; but of what stays torch's altogether its members are no matter."""
    found = {}
    for name in torch.cuda.graphs.__all__:
        one = getattr(torch.cuda.graphs, name)
        found |= {name: one} if DECISIONS.get(name) == TORCHS else names_of(name, one)
    return found


def of_drop_in():
    return {name: found for top, one in _compat._REPLACED.items() for name, found in names_of(top, one).items()}


def undecided(decisions):
    return sorted(of_torch().keys() - decisions.keys())


def test_each_name_of_the_installed_torch_is_decided_about():
    assert not undecided(DECISIONS), f"torch {torch.__version__} has names that nobody decided about: see DECISIONS"


@pytest.mark.parametrize("name", ["graph_pool_handle", "CUDAGraph.replay", "CUDAGraph.capture_begin(pool)", "graph(stream)"])
def test_a_name_that_nobody_decided_about_is_found(name):
    without = {each: what for each, what in DECISIONS.items() if each != name}
    assert name in undecided(without) and name not in undecided(DECISIONS)


def test_the_drop_in_has_what_was_decided():
    ours = of_drop_in()
    missing = sorted(name for name, what in DECISIONS.items() if what != TORCHS and name not in ours and "(" not in name)
    assert not missing
    missing = sorted(name for name in of_torch() if DECISIONS.get(name) in (HAS, IGNORED) and name not in ours)
    assert not missing


def by_position(arguments):
    return [name for name, one in arguments.items() if one.kind == one.POSITIONAL_OR_KEYWORD]


def test_arguments_have_torchs_defaults_and_order():
    ours, different = of_drop_in(), []
    for name, one in of_torch().items():
        if DECISIONS.get(name) != HAS or isinstance(one, inspect.Parameter):
            continue
        own, theirs = arguments_of(ours[name]), arguments_of(one)
        for argument, parameter in theirs.items():
            mode_of_class = argument == "capture_error_mode" and own[argument].default is None  # TorchCUDAGraph has torch's
            if not mode_of_class and own[argument].default != parameter.default:
                different.append(f"{name}({parameter}), here {own[argument]}")
        finds_torchs_order = hasattr(function_of(ours[name]), "__wrapped__")
        if not finds_torchs_order and by_position(own)[: len(theirs)] != by_position(theirs):
            different.append(f"{name}({', '.join(theirs)}), here ({', '.join(own)})")
    assert not different


def test_arguments_without_a_name_are_those_that_torch_has_in_their_places():
    def torchs(graph, mode="global", check=False, notes=None): ...

    @in_torchs_order(torchs)
    def ours(graph, mode="global", notes=None, check=False, lanes=0):
        return graph, mode, notes, check, lanes

    assert ours("g", "relaxed", True, notes=3, lanes=2) == ("g", "relaxed", 3, True, 2)
    with pytest.raises(TypeError, match="too many positional arguments"):
        ours("g", "relaxed", True, 3, 2)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'mode'"):
        ours("g", "relaxed", mode="global")
