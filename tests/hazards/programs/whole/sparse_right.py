"""The adjacency matrix is dense."""
import torch


def program(device):
    index = torch.tensor([[0, 1, 2], [1, 0, 2]], device=device)
    values = torch.ones(3, device=device)

    def propagate(x):
        adjacency = torch.zeros(3, 3, device=device).index_put((index[0], index[1]), values, accumulate=True)
        return torch.mm(adjacency, x)

    return propagate, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
