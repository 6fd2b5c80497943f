"""A step with Hugging Face's accelerate, that accumulates gradients, eagerly and with one decorator."""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch

import pianola

try:
    from accelerate import Accelerator

    from pianola.integrations.accelerate import graphed
except (ImportError, pianola.UsageError) as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 60


def train(is_graphed):
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x = torch.randn(8 * STEPS, 16)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=8)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    def train_step(x, y):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    if is_graphed:
        train_step = graphed(accelerator)(train_step)  # or @graphed(accelerator) above `def train_step`
    losses = [train_step(x, y).item() for x, y in loader]
    replays = sum(signature.replays for signature in train_step.info().signatures) if is_graphed else 0
    return accelerator.device, replays, losses, model.state_dict().values()


def main():
    torch.use_deterministic_algorithms(True)
    _, _, losses, weights = train(False)
    device, replays, graphed_losses, graphed_weights = train(True)
    print(f"{device.type}: {replays} of {STEPS} steps replayed")
    same = losses == graphed_losses and all(map(torch.equal, weights, graphed_weights))
    print("losses and weights are", "those of eager, bit for bit" if same else "NOT those of eager")
    return 0 if same and replays else 1


if __name__ == "__main__":
    sys.exit(main())
