"""The cursor is a tensor, and index_copy_ writes where it points."""
import torch


class ReplayBuffer:
    def __init__(self, device):
        self.states = torch.zeros(8, 3, device=device)
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)

    def add(self, state):
        self.states.index_copy_(0, self.cursor, state.unsqueeze(0))
        self.cursor.add_(1).remainder_(8)


def program(device):
    buffer = ReplayBuffer(device)
    return buffer.add, {"batches": [(torch.randn(3, device=device),) for _ in range(3)]}
