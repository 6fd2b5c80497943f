"""A number that changes makes a compiled function compile again."""
import torch


def program(device):
    torch.compiler.reset()
    settings = {"mode": "sum", "turn": 0}

    @torch.compile(backend="eager", dynamic=False)  # hazard: PG301?
    def pool(x, turn):
        return x.sum(0) + turn  # hazard: PG301?

    def step(x):
        return pool(x, settings["turn"])  # hazard: PG1005, PG301?

    def between():
        settings["turn"] += 1

    # hazard: PG304?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}
