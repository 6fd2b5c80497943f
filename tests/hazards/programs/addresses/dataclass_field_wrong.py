"""A field of a dataclass is replaced with dataclasses.replace between the steps."""
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
        return points @ camera.rotation + camera.translation  # hazard: PG401

    def between():
        scene["camera"] = dataclasses.replace(scene["camera"], translation=torch.randn(3, device=device))

    return project, {"batches": [(torch.randn(4, 3, device=device),) for _ in range(3)], "between": between}
