"""The field's tensor is written in place."""
import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass
class Camera:
    rotation: Tensor
    translation: Tensor


def program(device):
    scene = {"camera": Camera(torch.eye(3, device=device), torch.zeros(3, device=device))}

    def project(points):
        camera = scene["camera"]
        return points @ camera.rotation + camera.translation

    def between():
        scene["camera"].translation.copy_(torch.randn(3, device=device))

    return project, {"batches": [(torch.randn(4, 3, device=device),) for _ in range(3)], "between": between}
