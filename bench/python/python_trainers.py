"""Training by the trainers that people use, as it comes and with its steps replayed: transformers' Trainer, Lightning, accelerate.

Each sample is a training run of its own, from the same seed, from the end of its first steps to its end. What a run has logged and
the weights that it leaves are those of eager, bit for bit, or there are no figures.
"""

import importlib.util
import logging
import os
import tempfile
import time
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms want it, before CUDA starts
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # with several, transformers would use DataParallel

import torch
from measuring import case, check_equal, require_speedup, synchronize
from torch.utils.data import DataLoader, TensorDataset

EAGER, GRAPHED = "eager", "graphed"
STEPS, FIRST = 120, 60  # of a run, and those that are not timed


class Clock:
    """Reads the time where the first steps end, and at the end."""

    def __init__(self, settings):
        self.steps, self.first = (12, 8) if settings.quick else (STEPS, FIRST)
        self.done = 0

    def step_ended(self):
        self.done += 1
        if self.done in (self.first, self.steps):
            synchronize()
            self.at = time.perf_counter_ns(), getattr(self, "at", (0,))[0]

    def us(self):
        end, start = self.at
        return (end - start) / 1000 / (self.steps - self.first)


def words(count, length, vocabulary):
    return torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(1))


def of_transformers(settings, graphed, clock):
    """[tensor] that the run leaves."""
    import transformers
    from pianola.integrations.transformers import GraphedTrainer

    layers, width, batch, length = (1, 32, 2, 8) if settings.quick else (6, 384, 8, 128)
    config = transformers.GPT2Config(vocab_size=1000, n_positions=length, n_embd=width, n_layer=layers, n_head=4,
                                     bos_token_id=None, eos_token_id=None)  # fmt: skip
    mask = torch.ones(length, dtype=torch.long)  # as tokenizers make it
    rows = [{"input_ids": row, "attention_mask": mask, "labels": row} for row in words(batch * clock.steps, length, 1000)]

    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            clock.step_ended()

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=clock.steps, per_device_train_batch_size=batch, logging_steps=20, save_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=settings.device == "cpu")  # fmt: skip
        kind = GraphedTrainer if graphed else transformers.Trainer
        trainer = kind(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=rows, callbacks=[Ends()])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    logged = [torch.tensor(one["loss"]) for one in trainer.state.log_history if "loss" in one]
    return f"transformers {transformers.__version__}: GPT-2, {layers} x {width}, batch {batch} x {length}", \
        [*logged, *trainer.model.state_dict().values()], trainer.graphed_step if graphed else None  # fmt: skip


def of_lightning(settings, graphed, clock):
    from lightning import pytorch as lightning
    from pianola.integrations.lightning import GraphedTraining
    from torchvision.models import resnet18

    batch, size = (2, 32) if settings.quick else (16, 64)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = resnet18(num_classes=10)

        def training_step(self, batch, batch_idx):
            images, labels = batch
            loss = torch.nn.functional.cross_entropy(self.net(images), labels)
            self.log("loss", loss)
            return loss

        def on_train_batch_end(self, *args):
            clock.step_ended()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    images = torch.randn(batch * clock.steps, 3, size, size)
    loader = DataLoader(TensorDataset(images, torch.arange(len(images)) % 10), batch_size=batch)
    callback, model = GraphedTraining(), Classifier()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu" if settings.device == "cpu" else "gpu", devices=1, callbacks=[callback] if graphed else [],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(model, loader)
    return f"Lightning {lightning.__version__}: ResNet-18, batch {batch} x 3 x {size} x {size}", \
        [trainer.callback_metrics["loss"], *model.state_dict().values()], callback.graphed_step if graphed else None  # fmt: skip


def of_accelerate(settings, graphed, clock):
    import accelerate
    import transformers
    from pianola.integrations.accelerate import graphed as graphed_by

    layers, width, batch, length = (1, 32, 2, 8) if settings.quick else (6, 384, 8, 128)
    accelerator = accelerate.Accelerator(cpu=settings.device == "cpu")
    config = transformers.BertConfig(vocab_size=1000, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
                                     intermediate_size=4 * width, max_position_embeddings=length)  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = words(batch * clock.steps, length, 1000)
    loader = DataLoader(TensorDataset(ids, ids[:, 0] % 2), batch_size=batch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def step(ids, labels):
        loss = model(input_ids=ids, labels=labels).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run, losses = graphed_by(accelerator)(step) if graphed else step, []
    for batch_of in loader:
        losses.append(run(*batch_of))
        clock.step_ended()
    return f"accelerate {accelerate.__version__}: BERT, {layers} x {width}, batch {batch} x {length}", \
        [*losses, *model.state_dict().values()], run if graphed else None  # fmt: skip


def run_once(made, settings, graphed):
    clock = Clock(settings)
    torch.manual_seed(0)
    title, left, function = made(settings, graphed, clock)
    if graphed and not any(one.replays for one in function.info().signatures):
        raise RuntimeError(f"{title}: nothing is replayed: {function.info()}")
    return title, [tensor.detach().cpu().clone() for tensor in left], clock.us()


def run(settings):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    for needed, made in ((("transformers", "accelerate"), of_transformers), (("lightning", "torchvision"), of_lightning),
                         (("accelerate", "transformers"), of_accelerate)):  # fmt: skip
        missing = [package for package in needed if importlib.util.find_spec(package) is None]
        if missing:
            settings.notes.append(f"{made.__name__[3:]} is left out: {', '.join(missing)} not installed")
            continue
        samples = {EAGER: [], GRAPHED: []}
        for turn in range(-1, settings.rounds // 2):
            title, expected, eager = run_once(made, settings, graphed=False)
            title, left, taken = run_once(made, settings, graphed=True)
            check_equal(f"{title}, after {Clock(settings).steps} steps", left, expected)
            if turn >= 0:
                samples[EAGER].append(eager)
                samples[GRAPHED].append(taken)
        clock = Clock(settings)
        time_taken = case(title, "time per step", clock.steps - clock.first, EAGER, samples)
        require_speedup(time_taken, GRAPHED, EAGER, samples, 1.5)
        yield time_taken
