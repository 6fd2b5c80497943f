"""Whether a graph of the step finds room."""

import pianola
from marked_steps import check, findings_of, inputs


def test_a_graph_that_finds_no_room(device):
    def step(x):
        small = x * 2
        large = small.expand(1 << 15, 4, 16).relu()  # PG908
        return large.sum()

    report = check(test_a_graph_that_finds_no_room, step, batches=inputs(device), device=device, free_memory=4 << 20)
    (finding,) = findings_of(report)
    assert finding.severity == "memory" and report.ok
    assert "the driver has 4.0 MiB left" in finding.evidence and "this line has 8.0 MiB in 1 block" in finding.evidence


def test_a_graph_that_finds_room(device):
    def step(x):
        return x.relu().sum()

    check(test_a_graph_that_finds_room, step, batches=inputs(device), device=device, free_memory=1 << 30)
    check(test_a_graph_that_finds_room, step, batches=inputs(device))


def test_a_step_that_runs_nothing_has_nothing_to_say_of_memory(device):
    report = pianola.audit(lambda: None, device=device, free_memory=0)
    assert [finding.rule for finding in findings_of(report)] == ["PG1201"]
