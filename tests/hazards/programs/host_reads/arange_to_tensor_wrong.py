"""The end of a range is a tensor."""
import torch


def program(device):
    lengths = torch.tensor([2, 4, 3], device=device)

    def padding_mask(x):
        positions = torch.arange(lengths.max(), device=device)  # hazard: PG101
        return x[:, : positions.shape[0]] * (positions < lengths[:, None])

    return padding_mask, {"batches": [(torch.randn(3, 6, device=device),) for _ in range(3)]}
