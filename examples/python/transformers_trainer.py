"""A small GPT-2, trained by transformers' Trainer, and by the one that replays its steps: one import differs."""

import os
import sys
import tempfile

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # with several the Trainer would use DataParallel

import torch

import pianola

try:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from pianola.integrations.transformers import GraphedTrainer
except (ImportError, pianola.UsageError) as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS, WORDS = 60, 100
device = pianola.default_device()


def sentences(count=256, length=32):
    draw = torch.Generator().manual_seed(0)
    for _ in range(count):
        words = torch.randint(WORDS, (length,), generator=draw)
        yield {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


def train(kind, folder):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None)
    arguments = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=8, lr_scheduler_type="cosine", logging_steps=10, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=device.type == "cpu",
    )  # fmt: skip
    trainer = kind(model=GPT2LMHeadModel(config), args=arguments, train_dataset=list(sentences()))
    trainer.train()
    return trainer


def main():
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as folder:
        plain, graphed = train(Trainer, folder), train(GraphedTrainer, folder)
    replays = sum(signature.replays for signature in graphed.graphed_step.info().signatures)
    print(f"{device.type}: {replays} of {STEPS} steps replayed")
    same = all(map(torch.equal, plain.model.state_dict().values(), graphed.model.state_dict().values()))
    same = same and all(one.get("loss") == other.get("loss") for one, other in zip(plain.state.log_history, graphed.state.log_history))
    print("losses and weights are", "those of eager, bit for bit" if same else "NOT those of eager")
    return 0 if same and replays else 1


if __name__ == "__main__":
    sys.exit(main())
