"""einsum, bmm and broadcasting."""
import torch


def program(device):
    weight = torch.randn(3, 4, 5, device=device)

    def step(left, right):
        one = torch.einsum("bi,kij,bj->bk", left, weight, right)
        other = torch.bmm(left[:, None, :], weight[0].expand(2, -1, -1)) @ right[:, :, None]
        return one, other.flatten()

    batches = [(torch.randn(2, 4, device=device), torch.randn(2, 5, device=device)) for _ in range(3)]
    return step, {"batches": batches}
