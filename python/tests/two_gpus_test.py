"""Functions that are called on two GPUs in turn: each has graphs, inputs and an order of streams of its own."""

import pytest
import torch

import pianola

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("on_streams", ["torch's default", "others in turn"])
def test_calls_on_two_gpus_in_turn_replay_on_each(on_streams):
    graphed = pianola.graphed(lambda x: (x * 2 + 1).sin())
    devices = [torch.device("cuda", index) for index in range(2)]
    streams = {device: [torch.cuda.Stream(device) for _ in range(2)] for device in devices}
    with torch.no_grad():
        for call in range(10):
            for device in devices:
                x = torch.full((64, 32), float(call), device=device)
                expected = (x * 2 + 1).sin()
                torch.cuda.synchronize(device)
                stream = torch.cuda.default_stream(device) if on_streams == "torch's default" else streams[device][call % 2]
                with torch.cuda.stream(stream):
                    result = graphed(x)
                torch.cuda.synchronize(device)
                assert result.device == device
                assert torch.equal(result, expected), (call, device)
    signatures = graphed.info().signatures
    assert len(signatures) == 2 and all(signature.replays > 0 for signature in signatures)
