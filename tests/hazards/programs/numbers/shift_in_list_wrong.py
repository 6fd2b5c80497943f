"""The shift of an augmentation is the first entry of a list of numbers that is replaced."""
import torch

offsets = [0, 0]


def program(device):
    def augment(image):
        return torch.roll(image, shifts=(offsets[0], offsets[1]), dims=(-2, -1))  # hazard: PG301

    def between():
        offsets[:] = [offsets[0] + 1, offsets[1] + 2]

    return augment, {"batches": [(torch.rand(1, 4, 4, device=device),) for _ in range(3)], "between": between}
