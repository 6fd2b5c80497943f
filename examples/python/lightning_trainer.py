"""A small classifier, trained by Lightning's Trainer without and with a callback that has its steps replayed."""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch

import pianola

try:
    from lightning import pytorch as lightning

    from pianola.integrations.lightning import GraphedTraining
except (ImportError, pianola.UsageError) as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 60
device = pianola.default_device()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(self.trainer.callback_metrics["loss"].item())  # what was logged

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(callbacks):
    torch.manual_seed(0)
    model = Classifier()
    x = torch.randn(8 * STEPS, 16)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="gpu" if device.type == "cuda" else "cpu", devices=1, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    return model


def main():
    torch.use_deterministic_algorithms(True)
    callback = GraphedTraining()
    plain, graphed = train([]), train([callback])
    replays = sum(signature.replays for signature in callback.graphed_step.info().signatures)
    print(f"{device.type}: {replays} of {STEPS} steps replayed")
    same = plain.losses == graphed.losses and all(map(torch.equal, plain.state_dict().values(), graphed.state_dict().values()))
    print("losses and weights are", "those of eager, bit for bit" if same else "NOT those of eager")
    return 0 if same and replays else 1


if __name__ == "__main__":
    sys.exit(main())
