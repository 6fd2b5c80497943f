"""A solver iterates while its residual, a tensor, is too large."""
import torch


def program(device):
    matrix = torch.eye(4, device=device) * 3 + 0.1
    right = torch.randn(4, device=device)

    def solve():
        x = torch.zeros_like(right)
        residual = right - matrix @ x
        rounds = 0
        while residual.abs().sum() > -1.0 and rounds < 4:  # hazard: PG102
            x = x + residual / matrix.diagonal()
            residual = right - matrix @ x
            rounds += 1
        return x

    return solve
