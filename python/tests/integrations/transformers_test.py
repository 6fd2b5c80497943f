"""transformers' Trainer and the one that replays its steps: the same logs and weights, bit for bit."""

import logging

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from pianola.integrations.transformers import GraphedTrainer, GraphedTrainerMixin  # noqa: E402
from replayed import Replayed  # noqa: E402

STEPS, LENGTH, WORDS = 24, 12, 50
IMPLEMENTATION = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def gpt2(**changes):
    config = dict(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=2, **IMPLEMENTATION)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**config, **changes}))


def llama():
    config = dict(vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, **IMPLEMENTATION)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))


def bert():
    config = dict(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**config, max_position_embeddings=32))


def t5():
    config = dict(vocab_size=WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**config))


def text(count=98, *, padded=False, labels="words", masked=True, seed=3):
    """Sentences; with `padded`, every other batch has some that are shorter than its longest one."""
    draw = torch.Generator().manual_seed(seed)
    sentences = []
    for number in range(count):
        words = torch.randint(1, WORDS, (LENGTH,), generator=draw)
        length = LENGTH - (number % 3 if padded and number // 4 % 2 else 0)
        mask = (torch.arange(LENGTH) < length).long()
        target = torch.where(mask == 1, words, -100) if labels == "words" else torch.tensor(number % 2)
        sentences.append({"input_ids": words * mask, "labels": target, **({"attention_mask": mask} if masked else {})})
    return sentences


class Logs(transformers.TrainerCallback):
    """What the trainer logs, but for times."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **others):
        self.logs.append({name: value for name, value in logs.items() if "runtime" not in name and "per_second" not in name})


class Trained(Replayed):
    def __init__(self, kind, device, folder, *, model=gpt2, data=None, callbacks=(), resume=None, trainer=(), **arguments):
        torch.manual_seed(0)
        self.logs = Logs()
        chosen = {"per_device_train_batch_size": 4, "max_steps": STEPS, "logging_steps": 1, "save_strategy": "no", **arguments}
        chosen = transformers.TrainingArguments(
            output_dir=str(folder), report_to="none", disable_tqdm=True, use_cpu=device.type == "cpu", dataloader_pin_memory=False, **chosen
        )
        if chosen.device.type == "cuda":
            chosen._n_gpu = 1  # where there are several: no DataParallel
        data = text() if data is None else data
        self.model = model()
        self.trainer = kind(model=self.model, args=chosen, train_dataset=data, callbacks=[self.logs, *callbacks], **dict(trainer))
        self.trainer.train(resume_from_checkpoint=resume)

    def graphed_step(self):
        return self.trainer.graphed_step


@pytest.fixture
def both(device, tmp_path):
    """Trains twice, compares logs and weights, and returns what was graphed."""

    def train(kinds=(transformers.Trainer, GraphedTrainer), **what):
        plain, graphed = (Trained(kind, device, tmp_path / name, **what) for kind, name in zip(kinds, ("plain", "graphed")))
        assert len(plain.logs.logs) >= 20 and plain.logs.logs == graphed.logs.logs
        for (name, one), other in zip(plain.model.state_dict().items(), graphed.model.state_dict().values()):
            assert torch.equal(one, other), name
        return graphed

    return train


CASES = {
    "plain": {},
    "accumulation with a short last update": dict(gradient_accumulation_steps=3, num_train_epochs=3, max_steps=-1, data=text(88)),
    "label smoothing": dict(label_smoothing_factor=0.1),
    "a short last batch": dict(num_train_epochs=2, max_steps=-1, data=text(50)),
    "a schedule": dict(lr_scheduler_type="cosine", warmup_steps=5, learning_rate=1e-2),
    "no filter of infinite losses, no clipping": dict(logging_nan_inf_filter=False, max_grad_norm=0.0),
    "evaluation between the steps": dict(eval_strategy="steps", eval_steps=5, trainer={"eval_dataset": text(10, seed=5)}),
    "checkpointed activations": dict(gradient_checkpointing=True, model=lambda: gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "bfloat16": dict(bf16=True),
    "Llama": dict(model=llama),
    "BERT that classifies": dict(model=bert, data=text(labels="classes")),
    "T5": dict(model=t5),
    "another optimizer": dict(optim="sgd", learning_rate=0.1),
}


def as_tokenizers_do(sentences):
    return transformers.BatchEncoding(transformers.default_data_collator(sentences))


CASES["batches of tokenizers"] = dict(trainer={"data_collator": as_tokenizers_do})


@pytest.mark.parametrize("case", CASES)
def test_logs_and_weights_are_those_of_the_trainer(both, case):
    graphed = both(**CASES[case])
    assert graphed.replays >= STEPS // 2, graphed.reasons
    assert graphed.reasons == []


@pytest.mark.parametrize("model", [gpt2, llama, bert, t5])
def test_batches_with_and_without_padding_have_a_graph_each(both, model):
    labels = "classes" if model is bert else "words"
    graphed = both(model=model, data=text(96, padded=True, labels=labels), max_steps=40)
    assert graphed.reasons == []
    assert sum(one.replays > 0 for one in graphed.signatures) == 2


def test_a_mask_that_the_model_changes_is_asked_itself(both):
    class Changed(transformers.GPT2LMHeadModel):
        def forward(self, input_ids, attention_mask, labels):
            attention_mask[:, 5] = input_ids[:, 5] % 2
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    def model():
        return Changed(transformers.GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=2, **IMPLEMENTATION))

    graphed = both(model=model)
    assert graphed.replays == 0 and "writes input 2 in place" in graphed.reasons[0]


@pytest.mark.parametrize("model", [gpt2, llama, bert])
def test_batches_without_a_mask_replay_where_the_model_does_not_ask_for_packed_sequences(both, model):
    graphed = both(model=model, data=text(masked=False, labels="classes" if model is bert else "words"))
    asks = [reason for reason in graphed.reasons if "find_packed_sequence_indices" in reason]
    assert graphed.replays >= STEPS // 2 or asks and model is not bert, graphed.reasons


class Annealed(transformers.Trainer):
    """Whose loss depends on what a callback sets."""

    weight = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss * self.weight
        return (loss, outputs) if return_outputs else loss


class GraphedAnnealed(GraphedTrainerMixin, Annealed):
    pass


class Anneals(transformers.TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **others):
        if state.global_step == 12:
            self.trainer.weight = 0.5


def test_a_loss_that_a_callback_changes_is_followed(both):
    kinds = []
    for kind in (Annealed, GraphedAnnealed):

        def make(kind=kind, **arguments):
            trainer = kind(**arguments)
            next(one for one in trainer.callback_handler.callbacks if isinstance(one, Anneals)).trainer = trainer
            return trainer

        kinds.append(make)
    graphed = both(kinds, callbacks=[Anneals()])
    assert [one.replays > 0 for one in graphed.signatures] == [True, True]


@pytest.mark.parametrize("branches", [False, True])
def test_a_loss_that_follows_the_step_number_stays_eager_and_says_so_once(both, caplog, branches):
    class Scheduled(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            if branches:
                return loss * 2 if self.state.global_step > 18 else loss
            return loss * (1 + 0.01 * self.state.global_step)

    class GraphedScheduled(GraphedTrainerMixin, Scheduled):
        pass

    with caplog.at_level(logging.WARNING, "pianola"):
        graphed = both((Scheduled, GraphedScheduled))
    assert graphed.replays == 0
    (said,) = [record.getMessage() for record in caplog.records if record.name == "pianola"]
    assert said.startswith("GraphedScheduled.training_step runs eagerly: ") and ("global_step changed" in said or not branches)


def test_a_loss_that_is_asked_in_each_step_replays(both, caplog):
    class Reads(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * 2 if loss.item() > 3.9 else loss

    class GraphedReads(GraphedTrainerMixin, Reads):
        pass

    with caplog.at_level(logging.WARNING, "pianola"):
        graphed = both((Reads, GraphedReads), gradient_accumulation_steps=2)
    assert graphed.replays and not [record for record in caplog.records if record.name == "pianola"]


def test_scaled_gradients_replay(both):
    def scaled(kind):
        def make(**arguments):
            trainer = kind(**arguments)  # as fp16=True does on a GPU
            trainer.accelerator.scaler = torch.amp.GradScaler(trainer.args.device.type, init_scale=1024.0, growth_interval=5)
            return trainer

        return make

    graphed = both([scaled(transformers.Trainer), scaled(GraphedTrainer)], gradient_accumulation_steps=2)
    assert graphed.reasons == [] and graphed.replays >= STEPS // 2


def test_it_goes_on_from_a_checkpoint(device, tmp_path):
    arguments = dict(save_strategy="steps", save_steps=8, max_steps=32)
    plain = Trained(transformers.Trainer, device, tmp_path / "plain", **arguments)
    Trained(GraphedTrainer, device, tmp_path / "graphed", **arguments)
    resumed = Trained(GraphedTrainer, device, tmp_path / "again", resume=str(tmp_path / "graphed" / "checkpoint-8"), **arguments)
    assert resumed.replays > 0
    for one, other in zip(plain.model.state_dict().values(), resumed.model.state_dict().values()):
        assert torch.equal(one, other)


def test_a_trainer_trains_again(device, tmp_path):
    results = []
    for kind in (transformers.Trainer, GraphedTrainer):
        trained = Trained(kind, device, tmp_path / kind.__name__)
        trained.trainer.train()
        results.append((trained.logs.logs, list(trained.model.state_dict().values())))
        if kind is GraphedTrainer:
            assert trained.replays > 0
    (logs, weights), (their_logs, their_weights) = results
    assert len(logs) > STEPS and logs == their_logs and all(map(torch.equal, weights, their_weights))


def test_evaluation_and_prediction_are_the_trainers(device, tmp_path):
    data = text(10, seed=7)
    plain, graphed = (Trained(kind, device, tmp_path / kind.__name__) for kind in (transformers.Trainer, GraphedTrainer))
    calls = graphed.replays
    assert plain.trainer.evaluate(data)["eval_loss"] == graphed.trainer.evaluate(data)["eval_loss"]
    assert (plain.trainer.predict(data).predictions[0] == graphed.trainer.predict(data).predictions[0]).all()
    assert graphed.replays == calls


def test_options_are_those_of_graphed(device, tmp_path):
    class Options(GraphedTrainer):
        graphed_options = {"warmup": 1}

    more = Trained(Options, device, tmp_path / "more")
    assert more.replays > Trained(GraphedTrainer, device, tmp_path / "fewer").replays
