"""Batch normalization in training writes its running statistics on the device."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.ReLU(inplace=True)).to(device)
    return model, {"batches": [(torch.randn(2, 3, 5, device=device),) for _ in range(3)]}
