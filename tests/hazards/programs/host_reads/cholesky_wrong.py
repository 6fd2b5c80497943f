"""torch.linalg.cholesky asks on the host whether it succeeded."""
import torch

CUDA_ONLY = True


def program(device):
    jitter = torch.eye(3, device=device)

    def whiten(x):
        covariance = x.T @ x / x.shape[0] + jitter
        factor = torch.linalg.cholesky(covariance)  # hazard: PG101|PG102|PG110
        return torch.linalg.solve_triangular(factor, x.T, upper=False)

    return whiten, {"batches": [(torch.randn(6, 3, device=device),) for _ in range(3)]}
