"""pianola.profile and pianola.decide: a step recorded, analysed and judged."""

import json

import pytest
import torch

import pianola


def training_step(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 16, device=device)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        return batch  # which nobody asks whether it is true

    return step


def test_a_step_is_recorded_and_judged(device):
    profile = pianola.profile(training_step(device), iterations=6)
    assert 3 <= profile.iterations <= 6  # slow ones at the beginning, over twice the median, are taken for warm-up
    assert profile.kernels >= 20
    assert 0 < profile.utilisation <= 1
    assert profile.iteration_us >= profile.busy_us > 0
    if device.type == "cpu":
        assert profile.verdict == "unknown"
        assert "There is no GPU work in this profile" in profile.headline
        assert profile.best is None
    else:
        assert profile.verdict == "graph"
        assert profile.best.expected_us * profile.best.speedup == pytest.approx(profile.iteration_us, rel=0.01)


def test_the_report_is_text_json_and_a_page(device):
    profile = pianola.profile(training_step(device), iterations=6)
    assert profile.headline in " ".join(str(profile).split())
    assert json.loads(profile.to_json())["verdict"] == profile.verdict
    assert profile.to_html().startswith("<!DOCTYPE html>")


def test_what_was_recorded_can_be_kept_and_judged_again(device, tmp_path):
    trace = tmp_path / "step.json"
    profile = pianola.profile(training_step(device), iterations=6, trace=trace)
    again = pianola.decide(trace, range="pianola::profile step")
    assert (again.kernels, again.iteration_us, again.verdict) == (profile.kernels, profile.iteration_us, profile.verdict)


def test_modules_are_recorded_where_that_is_asked_for(device):
    profile = pianola.profile(training_step(device), iterations=6, modules=True)
    regions = {region["region"] for region in json.loads(profile.to_json())["regions"]}
    assert any(region.startswith("nn.Module: ") for region in regions)


def test_an_option_out_of_range_is_named(device):
    with pytest.raises(pianola.UsageError, match="iterations must be 1 or more, got 0"):
        pianola.profile(training_step(device), iterations=0)
    with pytest.raises(pianola.UsageError, match="warmup must be 0 or more, got -1"):
        pianola.profile(training_step(device), warmup=-1)


def test_what_the_step_raises_arrives_and_ends_the_recording(device):
    def step():
        raise ValueError("out of data")

    with pytest.raises(ValueError, match="out of data"):
        pianola.profile(step, warmup=0)
    assert pianola.profile(training_step(device), iterations=6).kernels > 0  # no profiler was left active


def test_an_active_profiler_is_named(device):
    with torch.profiler.profile():
        with pytest.raises(pianola.UsageError, match="torch's profiler cannot record"):
            pianola.profile(training_step(device))


def test_a_step_that_does_nothing_is_said_to_do_nothing():
    with pytest.raises(pianola.UsageError, match="has no device work"):
        pianola.profile(lambda: None)


def test_a_missing_profile_is_named(tmp_path):
    with pytest.raises(pianola.UsageError, match="nowhere.json"):
        pianola.decide(tmp_path / "nowhere.json")
