"""The solver does a fixed number of rounds; those past convergence change nothing."""
import torch


def program(device):
    matrix = torch.eye(4, device=device) * 3 + 0.1
    right = torch.randn(4, device=device)

    def solve():
        x = torch.zeros_like(right)
        for _ in range(4):
            residual = right - matrix @ x
            x = torch.where(residual.abs().sum() > 1e-6, x + residual / matrix.diagonal(), x)
        return x

    return solve
