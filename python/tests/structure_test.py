"""How calls are taken apart: what is plain by Pianola's own walk, the rest by torch's pytree, with the same outcome."""

import collections
import dataclasses

import pytest
import torch
from pianola import _C
from pianola._structure import of_arguments, of_result, tensors_of
from torch.utils import _pytree as pytree

A, B, C = torch.zeros(1), torch.nn.Parameter(torch.ones(2)), torch.full((3,), 2.0)
Pair = collections.namedtuple("Pair", ["first", "second"])


class Tagged(torch.Tensor):
    pass


@dataclasses.dataclass
class Batch:
    images: torch.Tensor
    name: str


PLAIN = [
    A,
    3,
    None,
    (),
    [],
    {},
    ([(A, B)],),
    [A, (B, [C, 2, "x", None, 1.5, 1j, b"y", True])],
    {"x": A, "options": {"k": 2, 3: B}, "c": [C]},
    ((((((A,),),),),),),
]
OTHER = [
    Pair(A, B),
    [collections.OrderedDict(x=A)],
    {"d": collections.defaultdict(list, x=[A])},
    (Tagged(torch.ones(1)), A),
    [object()],
    Batch(A, "b"),
    {"dtype": torch.float32},
    {("a", 1): [C]},
    {True: A},
]


@pytest.mark.parametrize("tree", PLAIN, ids=str)
def test_plain_trees_are_taken_apart_as_by_pytree(tree):
    expected, spec = pytree.tree_flatten(tree)
    leaves, _ = _C.take_plain_apart(tree)
    assert len(leaves) == len(expected) and all(map(lambda one, other: one is other, leaves, expected))
    for _ in range(2):  # the second time from what is remembered
        tensors, structure = of_arguments((tree,), {})
        assert structure.spec == pytree.tree_flatten(((tree,), {}))[1]
        (args, _) = structure.rebuild(tensors)
        assert pytree.tree_structure(args[0]) == spec


@pytest.mark.parametrize("tree", OTHER, ids=lambda tree: type(tree).__name__)
def test_other_trees_are_left_to_pytree(tree):
    assert _C.take_plain_apart(tree) is None
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors_of(tree))


@pytest.mark.parametrize(
    "one, other",
    [
        ([A, [B]], [[A], B]),
        ([A, B], (A, B)),
        ([], {}),
        ({"x": A, "y": B}, {"y": A, "x": B}),
        ({"x": A}, {"z": A}),
        ([[A] * 11], [[A], *[A] * 10]),
        ([{1: A}], [{1: A}, {}]),
        ({"a": {"b": A}}, {"b": {"a": A}}),
    ],
    ids=str,
)
def test_trees_of_other_structure_have_other_outlines(one, other):
    assert _C.take_plain_apart(one)[1] != _C.take_plain_apart(other)[1]
    assert not of_arguments((one,), {})[1].same(of_arguments((other,), {})[1])


def test_values_do_not_count_to_the_outline_but_to_the_structure():
    assert _C.take_plain_apart([A, 2])[1] == _C.take_plain_apart([C, 3])[1]
    assert not of_arguments((A, 2), {})[1].same(of_arguments((C, 3), {})[1])
    assert of_arguments((A, 2), {})[1].same(of_arguments((C, 2), {})[1])


def test_trees_of_tensors_that_are_nested_alike_share_a_structure():
    one, other = of_arguments((A, [B]), {"x": C}), of_arguments((B, [C]), {"x": A})
    assert one[1] is other[1] and not one[1].is_positional()
    assert [a is b for a, b in zip(other[0], (B, C, A))] == [True] * 3
    assert of_arguments((A, 2), {})[1] is not of_arguments((C, 2), {})[1]


@pytest.mark.parametrize("args, kwargs, expected", [
    ((A, B), {}, True),
    ((), {}, True),
    ((A, 2), {}, False),
    ((A,), {"x": B}, False),
    (([A, B], ()), {}, False),
    ((Tagged(torch.ones(1)), A), {}, True),
], ids=str)  # fmt: skip
def test_arguments_that_are_tensors_and_nothing_else_are_positional(args, kwargs, expected):
    assert of_arguments(args, kwargs)[1].is_positional() is expected


def test_a_number_where_a_tensor_was_is_another_structure():
    assert _C.take_plain_apart([A, 2])[1] != _C.take_plain_apart([A, B])[1]
    for _ in range(2):
        numbers, tensors = of_arguments((A, 2), {}), of_arguments((A, B), {})
        assert not numbers[1].same(tensors[1]) and not tensors[1].same(numbers[1])
        assert len(numbers[0]) == 1 and len(tensors[0]) == 2


def test_equal_keys_of_other_types_stay_what_they_are():
    for key in (1, True, 1.0):
        tensors, structure = of_arguments(({key: A},), {})
        ((tree,), _) = structure.rebuild(tensors)
        assert [type(kept) for kept in tree] == [type(key)]


def test_the_order_of_keyword_arguments_does_not_matter():
    one, other = of_arguments((), {"x": A, "y": B}), of_arguments((), {"y": B, "x": A})
    assert one[1].same(other[1]) and all(map(lambda a, b: a is b, one[0], other[0]))


def test_a_container_that_holds_itself_is_refused_by_pytree():
    tree = []
    tree.append(tree)
    assert _C.take_plain_apart(tree) is None
    with pytest.raises(RecursionError):
        tensors_of(tree)


def test_deep_trees_are_taken_apart_nevertheless():
    tree = A
    for _ in range(200):
        tree = [tree]
    assert _C.take_plain_apart(tree) is None
    assert len(tensors_of(tree)) == 1


def test_structures_without_end_are_not_all_remembered():
    from pianola import _structure

    for length in range(3000):
        of_arguments(([0] * length,), {})
    assert len(_structure._known) <= _structure._MOST_KNOWN


def test_results_are_put_together_by_code_of_their_own_from_the_second_time_on():
    """As pytree does it, whatever the tree."""
    tree = [Pair(A, (B, None)), {"k": collections.OrderedDict(z=C, a=3)}, collections.defaultdict(list, n=[A]), (), (B,), Batch(C, "b")]
    tensors, structure = of_result(tree)
    for _ in range(4):
        made = structure.rebuild(tensors)
        assert made == tree and type(made[0]) is Pair and list(made[1]["k"]) == ["z", "a"] and made[2].default_factory is list
        assert made[5] is not tree[5] and made[5].images is C
    deep = A
    for _ in range(300):
        deep = [deep]
    deep = collections.OrderedDict(deep=deep)  # which is no plain container
    tensors, structure = of_result(deep)
    for _ in range(3):
        assert structure.rebuild(tensors) == deep, "too deep for an expression"
