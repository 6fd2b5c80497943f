"""Makes mlp_cpu.json.gz: five training steps of a small MLP on the CPU, recorded by torch.profiler.

    python make_cpu_trace.py [FILE]

The tests count what is in the file, so a new one needs new counts; the script prints them.
"""

import collections
import gzip
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, TensorDataset

STEPS = 5
PREFIXES = {"nn.Module: ": "module", "autograd::engine::evaluate_function: ": "backward"}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)


def train(model, optimizer, loader):
    for x, y in loader:
        with record_function("train_step"):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        with record_function("logging"):
            loss.item()


def kind_of(event):
    for prefix, kind in PREFIXES.items():
        if event["name"].startswith(prefix):
            return kind
    return event.get("cat")


def main(file):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(8 * STEPS, 16), torch.randn(8 * STEPS, 4))
    train(model, optimizer, DataLoader(data, batch_size=8))
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True) as profiler:
        train(model, optimizer, DataLoader(data, batch_size=8))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "mlp_cpu.json"
        profiler.export_chrome_trace(str(plain))
        text = plain.read_text().replace(str(plain), "mlp_cpu.json")
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    events = json.loads(text)["traceEvents"]
    print(f"{file}: {file.stat().st_size} bytes, {len(events)} events")
    for kind, count in collections.Counter(map(kind_of, events)).most_common():
        print(f"  {kind}: {count}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("mlp_cpu.json.gz"))
