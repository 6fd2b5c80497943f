"""What came of parallel branches, in words."""


def branch_note(found):
    """Of info().branches, as bench/cuda/branch_twins.cpp says it."""
    outcome = f"rebuilt on {found.lanes} lanes" if found.rebuilt else f"left as captured, because {found.reason}"
    return (f"{outcome}: {found.nodes} nodes, {found.critical_nodes} of them critical, in {found.units} units; "
            f"{found.edges_after} edges instead of {found.edges_before}; {found.proved_pairs} pairs proved ordered")
