"""The augmentation is drawn on the device, for each image."""
import torch


def program(device):
    def augment(images):
        angle = torch.rand(images.shape[0], 1, 1, 1, device=images.device) * 2 - 1
        return images + angle

    return augment, {"batches": [(torch.rand(2, 3, 4, 4, device=device),) for _ in range(3)]}
