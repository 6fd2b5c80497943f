"""cholesky_ex leaves the information on the device."""
import torch


def program(device):
    jitter = torch.eye(3, device=device)

    def whiten(x):
        covariance = x.T @ x / x.shape[0] + jitter
        factor, info = torch.linalg.cholesky_ex(covariance)
        return torch.linalg.solve_triangular(factor, x.T, upper=False), info

    return whiten, {"batches": [(torch.randn(6, 3, device=device),) for _ in range(3)]}
