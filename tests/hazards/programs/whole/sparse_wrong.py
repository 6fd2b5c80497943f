"""A sparse tensor is made in the step: its number of entries is in the data."""
import torch


def program(device):
    index = torch.tensor([[0, 1, 2], [1, 0, 2]], device=device)
    values = torch.ones(3, device=device)

    def propagate(x):
        adjacency = torch.sparse_coo_tensor(index, values, (3, 3), check_invariants=False)  # hazard: PG1203|PG101*
        return torch.sparse.mm(adjacency, x)  # hazard: PG1203|PG101*

    return propagate, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
