"""Lightning's Trainer with and without GraphedTraining: the same logs and weights, bit for bit."""

import logging

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch")

from pianola.integrations.lightning import GraphedTraining  # noqa: E402
from replayed import Replayed  # noqa: E402

EPOCHS, BATCHES, WIDTH = 3, 10, 16


class Model(lightning.LightningModule):
    """A classifier that logs in all ways."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(), torch.nn.Dropout(dropout), torch.nn.Linear(32, 4)
        )
        self.weight = 1.0

    def loss(self, batch):
        x, y = batch
        logits = self.net(x)
        return logits, torch.nn.functional.cross_entropy(logits, y) * self.weight

    def training_step(self, batch, batch_idx):
        logits, loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"mean": logits.mean(), "size": float(len(batch[0]))}, on_step=True, on_epoch=True)
        self.log("largest", logits.max(), on_step=False, on_epoch=True, reduce_fx="max", batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch)[1])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch)[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * BATCHES + 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Logs(lightning.loggers.logger.Logger):
    """What the trainer logs."""

    name, version = "logs", 0

    def __init__(self):
        super().__init__()
        self.logs = []

    def log_metrics(self, metrics, step=None):
        self.logs.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass


def batches(count=8 * BATCHES, seed=1):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=draw)
    data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
    return torch.utils.data.DataLoader(data, batch_size=8)


class Trained(Replayed):
    def __init__(self, device, graphed, *, model=Model, data=None, callbacks=(), **options):
        torch.manual_seed(0)
        self.callback, self.logs, self.model = GraphedTraining(), Logs(), model()
        accelerator = {"accelerator": "gpu" if device.type == "cuda" else "cpu", "devices": 1}
        self.trainer = lightning.Trainer(
            max_epochs=EPOCHS, log_every_n_steps=1, logger=self.logs, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[*callbacks, *([self.callback] if graphed else [])], **accelerator, **options,
        )  # fmt: skip
        self.trainer.fit(self.model, batches() if data is None else data, batches(20, seed=2))
        self.tested = self.trainer.test(self.model, batches(20, seed=3), verbose=False)

    def graphed_step(self):
        return self.callback.graphed_step


def both(device, **what):
    """Trains twice, compares logs and weights, and returns what was graphed."""
    plain, graphed = (Trained(device, graphed, **what) for graphed in (False, True))
    assert len(plain.logs.logs) >= 15 and plain.logs.logs == graphed.logs.logs
    assert plain.trainer.callback_metrics == graphed.trainer.callback_metrics
    assert plain.tested == graphed.tested and plain.tested
    for (name, one), other in zip(plain.model.state_dict().items(), graphed.model.state_dict().values()):
        assert torch.equal(one, other), name
    assert "training_step" not in vars(graphed.model) and "log" not in vars(graphed.model)
    return graphed


CASES = {
    "plain": {},
    "accumulation": dict(accumulate_grad_batches=3),
    "clipping": dict(gradient_clip_val=0.5),
    "validation between the steps": dict(val_check_interval=4),
    "bfloat16": dict(precision="bf16-mixed"),
    "a short last batch": dict(data=batches(8 * BATCHES - 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_logs_and_weights_are_those_of_the_trainer(device, case):
    graphed = both(device, **CASES[case])
    assert graphed.reasons == []
    assert graphed.replays >= EPOCHS * BATCHES - 10


class Changes(lightning.Callback):
    """Edits the loss."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.weight = 0.5 if trainer.current_epoch == 1 else 1.0


def test_a_loss_that_a_callback_changes_is_followed(device):
    graphed = both(device, callbacks=[Changes()])
    assert sum(one.replays > 0 for one in graphed.signatures) == 2


class LogsNumbers(Model):
    """Numbers of the host, in all ways that may go stale."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("weight", self.weight)
        self.log("batch", float(batch_idx))
        self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"])
        return loss


class LogsEpochs(Model):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("weight", self.weight)
        self.log("batch", float(batch_idx))
        return {"loss": loss, "epoch": self.current_epoch}


class LogsRead(Model):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("read", loss.item() * 2)
        return loss


class LogsAtTimes(Model):
    def training_step(self, batch, batch_idx):
        logits, loss = self.loss(batch)
        if batch_idx % 2 == 0:
            self.log("even", loss)
        return loss


class Skips(Model):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 3 else None


@pytest.mark.parametrize("model", [LogsNumbers, LogsEpochs, LogsRead, LogsAtTimes, Skips])
def test_what_is_logged_is_never_stale(device, model):
    graphed = both(device, model=model, callbacks=[Changes()])
    assert graphed.replays > 0 or graphed.reasons


def test_steps_that_log_at_times_replay(device):
    graphed = both(device, model=LogsAtTimes)
    assert graphed.replays >= 20, graphed.reasons


class Counts(Model):
    """With a metric of torchmetrics, which counts on the host."""

    def __init__(self):
        super().__init__()
        import torchmetrics

        self.accuracy = torchmetrics.classification.MulticlassAccuracy(4)

    def training_step(self, batch, batch_idx):
        logits, loss = self.loss(batch)
        self.accuracy(logits, batch[1])
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        return loss


class Manual(Model):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()


class Reads(Model):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if loss.item() > 1 else loss


@pytest.mark.parametrize("model", [Counts, Manual])
def test_what_no_graph_holds_runs_eagerly_and_says_so_once(device, caplog, model):
    with caplog.at_level(logging.WARNING, "pianola"):
        graphed = both(device, model=model)
    said = [record.getMessage() for record in caplog.records if record.name == "pianola"]
    assert len(said) == 1 and said[0].startswith(f"{model.__name__}.training_step runs eagerly: ")
    assert graphed.callback.graphed_step is None or graphed.replays == 0


def test_a_step_that_decides_by_its_loss_replays(device):
    assert both(device, model=Reads).replays


def test_a_failing_step_leaves_the_module_as_it_was(device):
    class Fails(Model):
        def training_step(self, batch, batch_idx):
            if batch_idx == 5:
                raise RuntimeError("it fails")
            return super().training_step(batch, batch_idx)

    model = Fails()
    callback = GraphedTraining()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="gpu" if device.type == "cuda" else "cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="it fails"):
        trainer.fit(model, batches())
    assert "training_step" not in vars(model) and "log" not in vars(model)
