"""torch.where puts the noise where the mask is true."""
import torch


def program(device):
    noise = torch.randn(3, 4, device=device)

    def corrupt(x):
        broken = x.abs() > 1.0
        return torch.where(broken, noise + 1, x)

    return corrupt, {"batches": [(torch.randn(3, 4, device=device) * 2,) for _ in range(3)]}
