"""pianola.Checkpoint: training goes on from a file as if it had never stopped, bit for bit; what does not fit is refused."""

import gc
import os
import subprocess
import sys
import weakref
import zipfile

import pytest
import torch

import pianola

STEPS, SAVED = 20, 8


class Run:
    """A model in training, and a checkpoint of all that it consists of."""

    def __init__(self, device):
        torch.manual_seed(3)
        self.device = device
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 16)
        ).to(device)
        self.optimizer = pianola.optim.AdamW(self.model.parameters(), lr=1e-2)
        rate = pianola.optim.LearningRate.cosine(STEPS)
        self.schedule = pianola.optim.LearningRateSchedule(self.optimizer, rate, [1e-2])
        self.scaler = pianola.GradScaler(device, init_scale=1024.0, growth_interval=4)
        self.average = pianola.optim.ExponentialMovingAverage(list(self.model.parameters()), 0.9)
        self.tracker = pianola.RngTracker(device)
        self.tracker.add("rank", 9)
        self.iteration = pianola.FullIteration(self.step, warmup=2, generators=self.tracker.generators())
        self.checkpoint = pianola.Checkpoint()
        for name in ("model", "optimizer", "schedule", "scaler", "average", "tracker"):
            self.checkpoint.add(name, getattr(self, name))
        self.checkpoint.add_generator("generator", default_generator(device))

    def step(self, microbatches):
        self.optimizer.zero_grad()
        for x in microbatches:
            with self.tracker.fork("rank"):
                x = torch.nn.functional.dropout(x, 0.25)
            self.scaler.scale(self.model(x).square().mean()).backward()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.average.update()

    def run(self, first, last):
        data = torch.randn(STEPS, 2, 4, 16, generator=torch.Generator().manual_seed(1)).to(self.device)
        for microbatches in data[first:last]:
            self.iteration(list(microbatches))
            self.schedule.step()
        return self

    def everything(self):
        named = {**self.model.state_dict(), **dict(self.optimizer.state()), **dict(self.scaler.state())}
        named.update(self.tracker.state_dict(), steps=torch.tensor(self.schedule.steps), rate=self.optimizer.learning_rate())
        named.update(self.average.state(), generator=default_generator(self.device).get_state())
        return {name: tensor.detach().clone() for name, tensor in named.items()}


def default_generator(device):
    return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name].cpu(), other[name].cpu()), name


@pytest.fixture
def file(tmp_path):
    return tmp_path / "step.pt"


def test_goes_on_bit_for_bit_with_an_old_graph(device, file):
    saved = Run(device).run(0, SAVED)
    assert saved.checkpoint.save(file) is None
    expected = saved.run(SAVED, STEPS).everything()  # the run that never stopped

    assert saved.iteration.info().signatures[0].state == "captured"
    saved.checkpoint.load(file)
    assert_same(saved.run(SAVED, STEPS).everything(), expected)

    other = Run(device).run(3, 9)
    other.checkpoint.load(str(file))
    assert_same(other.run(SAVED, STEPS).everything(), expected)


def test_goes_on_bit_for_bit_in_a_new_process(device, file, tmp_path):
    saved = Run(device).run(0, SAVED)
    saved.checkpoint.save(file)
    expected = saved.run(SAVED, STEPS).everything()
    result = tmp_path / "result.pt"
    ran = subprocess.run(
        [sys.executable, __file__, str(device), str(file), str(result)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert ran.returncode == 0, ran.stderr
    assert_same(torch.load(result, map_location=device, weights_only=True), expected)


def go_on(device, file, result):
    torch.use_deterministic_algorithms(True)
    run = Run(torch.device(device))
    run.checkpoint.load(file)
    torch.save(run.run(SAVED, STEPS).everything(), result)


def test_torch_load_reads_the_file(device, file):
    run = Run(device).run(0, 3)
    run.checkpoint.save(file)
    saved = torch.load(file, weights_only=True)
    assert list(saved) == ["model", "optimizer", "schedule", "scaler", "average", "tracker", "generator"]
    assert_same(saved["model"], run.model.state_dict())
    assert torch.equal(saved["generator"], default_generator(device).get_state())
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(), torch.nn.Linear(32, 16)))
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.state_dict()["state"][0]["step"] == 3


def test_a_module_and_its_tensors_by_name_are_the_same_to_a_file(device, file):
    """Tensors by name are loaded and saved by the library without Python, as C++ programs do."""
    one, other = (torch.nn.BatchNorm1d(4, device=device) for _ in range(2))
    one(torch.randn(8, 4, device=device))
    pianola.Checkpoint().add("model", one).save(file)
    pianola.Checkpoint().add("model", other.state_dict()).load(file)
    assert_same(other.state_dict(), one.state_dict())

    one(torch.randn(8, 4, device=device))
    pianola.Checkpoint().add("model", iter([*one.named_parameters(), *one.named_buffers()])).save(file)
    pianola.Checkpoint().add("model", other).load(file)
    assert_same(other.state_dict(), one.state_dict())


class TorchRun:
    """The same with torch's own optimizer and scheduler."""

    def __init__(self, device):
        torch.manual_seed(3)
        self.model = torch.nn.Linear(8, 8).to(device)
        rate = torch.tensor(1e-2, device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, fused=True, capturable=device.type == "cuda")
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.iteration = pianola.FullIteration(self.step, warmup=1)
        self.checkpoint = pianola.Checkpoint().add("model", self.model).add("optimizer", self.optimizer)
        self.checkpoint.add("scheduler", self.scheduler)
        self.x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device)

    def step(self, microbatches):
        self.optimizer.zero_grad()
        self.model(microbatches[0]).square().mean().backward()
        self.optimizer.step()

    def run(self, steps):
        for _ in range(steps):
            self.iteration([self.x])
            self.scheduler.step()
        return self

    def everything(self):
        state = self.optimizer.state_dict()
        values = {f"{i}.{name}": value for i, entry in state["state"].items() for name, value in entry.items()}
        rate = state["param_groups"][0]["lr"]
        return {k: v.clone() for k, v in {**self.model.state_dict(), **values, "rate": rate}.items()}


def test_torchs_optimizers_go_on_with_an_old_graph(device, file):
    run = TorchRun(device).run(4)
    run.checkpoint.save(file)
    expected = run.run(5).everything()
    for other in (run, TorchRun(device).run(2), TorchRun(device)):
        other.checkpoint.load(file)
        assert_same(other.run(5).everything(), expected)
        assert other.iteration.info().signatures[0].state == "captured"


def test_a_state_of_another_torch_optimizer_is_refused(device, file):
    run = TorchRun(device)
    run.checkpoint.save(file)
    run.run(2)
    before = run.everything()
    with pytest.raises(pianola.UsageError, match=r"part 'optimizer' of .*: state\[0\] is not in the checkpoint, which was saved"):
        run.checkpoint.load(file)
    assert_same(run.everything(), before)

    parameters = [torch.nn.Parameter(torch.ones(3, device=device))]
    other = torch.optim.SGD(parameters, momentum=0.9)
    pianola.Checkpoint().add("optimizer", other).save(file)
    adam = torch.optim.Adam(parameters)
    with pytest.raises(pianola.UsageError, match=r"param_groups\[0\] holds 'dampening', which has no meaning"):
        pianola.Checkpoint().add("optimizer", adam).load(file)

    for numel in (3, 4):
        parameters = [torch.nn.Parameter(torch.ones(numel, device=device))]
        adam = torch.optim.Adam(parameters)
        parameters[0].grad = torch.ones_like(parameters[0])
        adam.step()
        checkpoint = pianola.Checkpoint().add("optimizer", adam)
        if numel == 3:
            checkpoint.save(file)
    with pytest.raises(pianola.UsageError, match=r"state\[0\]\['exp_avg'\] is float32\[4\], and float32\[3\] in the checkpoint"):
        checkpoint.load(file)


def test_a_torch_optimizer_that_was_empty_is_so_again_where_a_later_part_refuses(device, file):
    run = TorchRun(device).run(2)
    pianola.Checkpoint().add("optimizer", run.optimizer).add("mine", Stubborn()).save(file)
    fresh = TorchRun(device)
    with pytest.raises(pianola.UsageError, match="part 'mine'"):
        pianola.Checkpoint().add("optimizer", fresh.optimizer).add("mine", Stubborn(KeyError("weights"))).load(file)
    assert fresh.optimizer.state_dict()["state"] == {}


class Stubborn:
    """Takes no state."""

    def __init__(self, error=None, state=None):
        self.error = error
        self.state = {} if state is None else state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        if self.error is not None:
            raise self.error


def test_another_model_is_refused_and_nothing_changes(device, file):
    run = Run(device).run(0, 3)
    run.checkpoint.save(file)
    linear, norm, dropout, last = run.model
    wide = torch.nn.Sequential(torch.nn.Linear(8, 32).to(device), norm, dropout, last)
    half = torch.nn.Sequential(torch.nn.Linear(16, 32).to(device).half(), norm, dropout, last)
    before = run.run(3, 6).everything()

    def refused(model, match):
        checkpoint = pianola.Checkpoint()
        for name in ("tracker", "optimizer", "schedule", "scaler", "average"):
            checkpoint.add(name, getattr(run, name))
        checkpoint.add_generator("generator", default_generator(device)).add("model", model)
        with pytest.raises(pianola.UsageError, match=match) as raised:
            checkpoint.load(file)
        assert raised.value.fix == "load the checkpoint of the same model, or make the parts as they were when it was saved"
        assert_same(run.everything(), before)

    where = r"part 'model' of .*step\.pt: "
    refused(wide, where + r"'0\.weight' is float32\[32, 8\], and float32\[32, 16\] in the checkpoint")
    refused(half, where + r"'0\.weight' is float16\[32, 16\], and float32\[32, 16\] in the checkpoint")
    refused(torch.nn.Sequential(linear, norm, dropout), where + r"'3\.weight' is in the checkpoint, and not here")
    refused(torch.nn.Sequential(*run.model, linear), where + r"'4\.weight' is not in the checkpoint")
    refused({"0.weight": torch.zeros(32, 16)}, where + "'.*' is in the checkpoint, and not here")
    refused(Stubborn(KeyError("weights")), where + "KeyError: 'weights'")
    refused(torch.optim.SGD(run.model.parameters()), where + "KeyError: 'param_groups'")


def test_an_optimizer_of_pianola_tells_why_it_refuses(device, file):
    parameters = [torch.nn.Parameter(torch.ones(3, device=device))]
    pianola.Checkpoint().add("optimizer", pianola.optim.SGD(parameters)).save(file)
    with pytest.raises(pianola.UsageError, match="part 'optimizer' of .*: this state cannot be loaded into .*; nothing was changed"):
        pianola.Checkpoint().add("optimizer", pianola.optim.Adam(parameters)).load(file)


def test_an_exception_of_a_part_is_the_cause_and_an_interrupt_stays_one(device, file):
    weight = torch.zeros(3, device=device)
    mine = Stubborn()
    checkpoint = pianola.Checkpoint().add("model", {"weight": weight}).add("mine", mine)
    checkpoint.save(file)
    weight.fill_(5)
    mine.error = ValueError("not today")
    with pytest.raises(pianola.UsageError, match="part 'mine' of .*: ValueError: not today") as raised:
        checkpoint.load(file)
    assert raised.value.__cause__ is mine.error
    mine.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        checkpoint.load(file)
    assert weight.eq(5).all(), "loaded, and put back"
    mine.error = None
    checkpoint.load(file)
    assert weight.eq(0).all()


def test_other_parts_are_refused(device, file):
    tensors = {"weight": torch.ones(2, device=device)}
    checkpoint = pianola.Checkpoint().add("model", tensors)
    checkpoint.add("random", pianola.RngTracker(device)).save(file)
    with pytest.raises(pianola.UsageError, match="part 'scaler' is missing in it; its part 'random' is not here"):
        pianola.Checkpoint().add("model", tensors).add("scaler", tensors).load(file)
    for add in (lambda: checkpoint.add("model", tensors), lambda: checkpoint.add("model", torch.nn.Linear(2, 2)),
                lambda: checkpoint.add_generator("model", torch.default_generator)):  # fmt: skip
        with pytest.raises(pianola.UsageError, match="the checkpoint has a part 'model' already"):
            add()
    with pytest.raises(pianola.UsageError, match="part 'x' is a Tensor(.|\\n)*give it a name: {'x': tensor}"):
        checkpoint.add("x", torch.ones(2))
    with pytest.raises(pianola.UsageError, match="part 'x' is a Generator(.|\\n)*add_generator\\(\\) takes it"):
        checkpoint.add("x", torch.Generator())
    for nothing in (3, [torch.ones(2)], {"a": 3}, pianola.Graph("cpu")):
        with pytest.raises(pianola.UsageError, match="without state_dict\\(\\) and load_state_dict\\(\\), and no tensors by name"):
            checkpoint.add("x", nothing)
    with pytest.raises(pianola.UsageError, match="part 'x' has two tensors of the name 'a'"):
        checkpoint.add("x", [("a", torch.ones(2)), ("a", torch.ones(3))])
    checkpoint.load(file)


def test_what_cannot_be_saved_is_named_and_the_earlier_file_stays(file):
    mine = Stubborn(state={"step": 3})
    checkpoint = pianola.Checkpoint().add("mine", mine)
    checkpoint.save(file)
    mine.state = {"step": 4, "hooks": [len]}
    message = r"part 'mine' cannot be saved: state\['hooks'\]\[0\] must be None, a bool, .*, got <class 'builtin_function"
    with pytest.raises(pianola.UsageError, match=message):
        checkpoint.save(file)
    mine.state_dict = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        checkpoint.save(file)
    with pytest.raises(pianola.UsageError, match=r"no/folder\.pt cannot be written"):
        pianola.Checkpoint().save(file.parent / "no" / "folder.pt")
    assert torch.load(file, weights_only=True) == {"mine": {"step": 3}}
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_file_that_is_no_checkpoint_is_refused(device, file):
    weight = torch.ones(2, device=device)
    checkpoint = pianola.Checkpoint().add("model", {"weight": weight})
    with pytest.raises(pianola.UsageError, match=r"step\.pt cannot be read"):
        checkpoint.load(file)
    checkpoint.save(file)
    weight.fill_(2)
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(pianola.UsageError, match=r"step\.pt is no checkpoint, or only a part of one"):
        checkpoint.load(file)
    assert weight.eq(2).all()


def flipped(whole):
    """The same bytes with one bit flipped, in every byte."""
    for at in range(len(whole)):
        yield whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]


def test_a_flipped_bit_in_any_byte_is_refused_with_the_file_and_the_reason(file):
    weight, mine = torch.ones(3), Stubborn(state={"step": 3, "name": "a text"})
    checkpoint = pianola.Checkpoint().add("model", {"weight": weight}).add("mine", mine)
    checkpoint.save(file)
    whole = file.read_bytes()
    assert torch.load(file, weights_only=True)["mine"] == mine.state
    assert zipfile.ZipFile(file).testzip() is None
    weight.zero_()
    for damaged in flipped(whole):
        file.write_bytes(damaged)
        with pytest.raises(pianola.UsageError, match=r"step\.pt is (damaged: its checksum|no checkpoint, or only a part)"):
            checkpoint.load(file)
    assert weight.eq(0).all()
    file.write_bytes(whole)
    checkpoint.load(file)
    assert weight.eq(1).all()


def test_a_file_without_a_checksum_is_loaded_with_a_warning(file):
    weight = torch.ones(3)
    checkpoint = pianola.Checkpoint().add("model", {"weight": weight})
    checkpoint.save(file)
    seal = len("pianola:crc64:") + 16
    file.write_bytes(file.read_bytes()[: -seal - 2] + b"\0\0")
    weight.zero_()
    with pytest.warns(UserWarning, match=r"step\.pt has no checksum, as an earlier version wrote it"):
        checkpoint.load(file)
    assert weight.eq(1).all()


def test_links_in_the_folder_are_not_followed(file):
    foreign = file.parent / "foreign"
    foreign.write_text("theirs")
    for link in (file, file.with_name(file.name + ".part")):
        link.symlink_to(foreign)
    checkpoint = pianola.Checkpoint().add("model", {"weight": torch.ones(3)})
    checkpoint.save(file)
    assert foreign.read_text() == "theirs" and not file.is_symlink()
    assert sorted(one.name for one in file.parent.iterdir()) == ["foreign", "step.pt", "step.pt.part"]
    checkpoint.load(file)


def test_keeps_its_parts_alive_and_is_freed_with_them(device, file):
    run = Run(device)
    checkpoint, gone = run.checkpoint, weakref.ref(run.model)
    checkpoint.add("run", Stubborn(state={"owner": None}))
    del run
    gc.collect()
    checkpoint.save(file)
    assert gone() is not None
    holder = Stubborn()
    holder.checkpoint = pianola.Checkpoint().add("holder", holder)  # a circle
    circle = weakref.ref(holder)
    del checkpoint, holder
    gc.collect()
    assert gone() is None and circle() is None


if __name__ == "__main__":
    go_on(*sys.argv[1:])
