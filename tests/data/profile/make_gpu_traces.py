"""Makes mlp_gpu.json.gz and mlp_gpu_graph.json.gz: training steps of examples/python/train_mlp.py on a GPU, eager and in a
graph, recorded by torch.profiler.

    python make_gpu_traces.py [FOLDER]

And mlp_gpu/*.pianola is what this leaves:

    pianola profile --output tests/data/profile/mlp_gpu -- python examples/python/train_mlp.py --steps 40

The tests count what is in the files, so new ones need new counts; the script prints them.
"""

import collections
import gzip
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import pianola

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "python"))
import train_mlp  # noqa: E402

STEPS = 5


def make_step(graph):
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = train_mlp.network().to(device)
    optimizer = pianola.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(train_mlp.BATCH, train_mlp.WIDTH, device=device)
    y = x.sum(dim=1, keepdim=True).sin()

    def train_step(microbatches):
        optimizer.zero_grad()
        ((x, y),) = microbatches
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = pianola.FullIteration(train_step) if graph else train_step
    return lambda: step([(x, y)])


def record(step, file):
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        text = plain.read_text().replace(str(plain), file.name.removesuffix(".gz"))
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    events = json.loads(text)["traceEvents"]
    print(f"{file}: {file.stat().st_size} bytes, {len(events)} events")
    for kind, count in collections.Counter(event.get("cat") for event in events).most_common():
        print(f"  {kind}: {count}")


def main(folder):
    record(make_step(graph=False), folder / "mlp_gpu.json.gz")
    record(make_step(graph=True), folder / "mlp_gpu_graph.json.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
