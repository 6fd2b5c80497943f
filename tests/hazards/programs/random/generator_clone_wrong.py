"""The step forks the random numbers, so that what it draws leaves no trace."""
import torch


def program(device):
    devices = [0] if torch.device(device).type == "cuda" else []

    def step(x):
        with torch.random.fork_rng(devices=devices):  # hazard: PG602|PG603*
            torch.manual_seed(1)  # hazard: PG602
            noise = torch.randn_like(x)  # hazard: PG602|PG603*
        return x + noise  # hazard: PG602|PG603*

    return step, {"batches": [(torch.rand(2, 3, device=device),) for _ in range(3)]}
