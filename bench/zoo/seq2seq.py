"""From one sequence to another: translation and speech."""

import copy
import math

import torch
import transformers
from program import Program, forever, words
from torch import nn
from torch.nn import functional as F


def t5_adafactor(device, size, graphed):
    from transformers.optimization import Adafactor

    config = transformers.T5Config(**size(dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=200), {}),
                                   decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).to(device)
    optimizer = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, warmup_init=False, lr=1e-3)
    source = words(size(2, 16), size(12, 256), config.vocab_size, device)
    target = words(size(2, 16), size(8, 64), config.vocab_size, device)
    loader = [(x, y) for (x,), (y,) in zip(source, target)]
    model.train()

    @graphed
    def train_step(input_ids, labels):
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def loop():
        for input_ids, labels in forever(loader):
            yield train_step(input_ids, labels)

    return Program(loop, (model, optimizer), model)


def whisper(device, size, graphed):
    small = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
                 encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=200, num_mel_bins=20, max_source_positions=30,
                 max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    config = transformers.WhisperConfig(**size(small, {}))
    model = transformers.WhisperForConditionalGeneration(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    frames = 2 * config.max_source_positions
    loader = [(torch.randn(len(labels), config.num_mel_bins, frames).to(device), labels)
              for (labels,) in words(size(2, 16), size(8, 64), min(config.vocab_size, 50_000), device)]
    model.train()

    @graphed
    def train_step(input_features, labels):
        outputs = model(input_features=input_features, labels=labels)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def loop():
        for input_features, labels in forever(loader):
            yield train_step(input_features, labels)

    return Program(loop, (model, optimizer), model)


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def subsequent_mask(size):
    attn_shape = (1, size, size)
    subsequent_mask = torch.triu(torch.ones(attn_shape), diagonal=1).type(torch.uint8)
    return subsequent_mask == 0


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
                             for lin, x in zip(self.linears, (query, key, value))]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(self.attn, value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class TransformerLayer(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout, attends_to_memory):
        super().__init__()
        self.attentions = clones(MultiHeadedAttention(h, d_model, dropout), 2 if attends_to_memory else 1)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.norms = clones(nn.LayerNorm(d_model), len(self.attentions) + 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        y = self.norms[0](x)
        x = x + self.dropout(self.attentions[0](y, y, y, mask))
        if memory is not None:
            x = x + self.dropout(self.attentions[1](self.norms[1](x), memory, memory, memory_mask))
        return x + self.dropout(self.feed_forward(self.norms[-1](x)))


class EncoderDecoder(nn.Module):
    def __init__(self, vocab, N, d_model, d_ff, h, dropout=0.1, max_len=512):
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(vocab, d_model), nn.Embedding(vocab, d_model)
        self.encoder = clones(TransformerLayer(d_model, h, d_ff, dropout, False), N)
        self.decoder = clones(TransformerLayer(d_model, h, d_ff, dropout, True), N)
        self.norm_in, self.norm_out = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.generator = nn.Linear(d_model, vocab)
        self.dropout = nn.Dropout(dropout)
        self.d_model = d_model
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def embed(self, embedding, x):
        return self.dropout(embedding(x) * math.sqrt(self.d_model) + self.pe[:, : x.size(1)].requires_grad_(False))

    def forward(self, src, tgt, src_mask, tgt_mask):
        memory = self.embed(self.src_embed, src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory = self.norm_in(memory)
        x = self.embed(self.tgt_embed, tgt)
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        return F.log_softmax(self.generator(self.norm_out(x)), dim=-1)


class LabelSmoothing(nn.Module):
    def __init__(self, size, padding_idx, smoothing=0.0):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.padding_idx, self.confidence, self.smoothing, self.size = padding_idx, 1.0 - smoothing, smoothing, size

    def forward(self, x, target):
        true_dist = x.data.clone()
        true_dist.fill_(self.smoothing / (self.size - 2))
        true_dist.scatter_(1, target.data.unsqueeze(1), self.confidence)
        true_dist[:, self.padding_idx] = 0
        true_dist = true_dist * (target.data != self.padding_idx).unsqueeze(1)
        return self.criterion(x, true_dist.clone().detach())


class Batch:
    def __init__(self, src, tgt, pad=0):
        self.src = src
        self.src_mask = (src != pad).unsqueeze(-2)
        self.tgt = tgt[:, :-1]
        self.tgt_y = tgt[:, 1:]
        self.tgt_mask = (self.tgt != pad).unsqueeze(-2)
        self.tgt_mask = self.tgt_mask & subsequent_mask(self.tgt.size(-1)).type_as(self.tgt_mask.data)
        self.ntokens = self.tgt_y.numel()


def rate(step, model_size, factor, warmup):
    step = step or 1
    return factor * (model_size ** (-0.5) * min(step ** (-0.5), step * warmup ** (-1.5)))


def annotated_transformer(device, size, graphed):
    V, N, d_model, d_ff, h = size((30, 1, 32, 64, 2), (10_000, 6, 512, 2048, 8))
    model = EncoderDecoder(V, N, d_model, d_ff, h).to(device)
    criterion = LabelSmoothing(size=V, padding_idx=0, smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda step: rate(step, d_model, 1.0, 400))
    loader = words(size(2, 32), size(10, 72), V, device)
    model.train()

    @graphed
    def train_step(batch):
        out = model.forward(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        sloss = criterion(out.contiguous().view(-1, out.size(-1)), batch.tgt_y.contiguous().view(-1)) / batch.ntokens
        sloss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        lr_scheduler.step()
        return sloss.item()

    def loop():
        for (data,) in forever(loader):
            yield train_step(Batch(data, data))

    return Program(loop, (model, optimizer, lr_scheduler), model)


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        embedded = self.dropout(self.embedding(input))
        output, hidden = self.gru(embedded)
        return output, hidden


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa, self.Ua, self.Va = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, device, max_length, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)
        self.device, self.max_length = device, max_length

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long, device=self.device).fill_(0)
        decoder_hidden = encoder_hidden
        decoder_outputs = []
        for i in range(self.max_length):
            decoder_output, decoder_hidden = self.forward_step(decoder_input, decoder_hidden, encoder_outputs)
            decoder_outputs.append(decoder_output)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = decoder_output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        decoder_outputs = torch.cat(decoder_outputs, dim=1)
        return F.log_softmax(decoder_outputs, dim=-1), decoder_hidden

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        query = hidden.permute(1, 0, 2)
        context, attn_weights = self.attention(query, encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden


def gru_translation(device, size, graphed):
    hidden_size, vocabulary, batch_size, max_length = size((16, 50, 2, 5), (128, 4000, 32, 10))
    encoder = EncoderRNN(vocabulary, hidden_size).to(device)
    decoder = AttnDecoderRNN(hidden_size, vocabulary, device, max_length).to(device)
    encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=0.001)
    decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=0.001)
    criterion = nn.NLLLoss()
    dataloader = [(x, y) for (x,), (y,) in zip(*(words(batch_size, max_length, vocabulary, device) for _ in range(2)))]

    @graphed
    def train_step(input_tensor, target_tensor):
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        encoder_outputs, encoder_hidden = encoder(input_tensor)
        decoder_outputs, _ = decoder(encoder_outputs, encoder_hidden, target_tensor)
        loss = criterion(decoder_outputs.view(-1, decoder_outputs.size(-1)), target_tensor.view(-1))
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        return loss.item()

    def loop():
        total_loss = 0
        for input_tensor, target_tensor in forever(dataloader):
            total_loss += train_step(input_tensor, target_tensor)
            yield total_loss

    return Program(loop, (encoder, decoder, encoder_optimizer, decoder_optimizer))


class CNNLayerNorm(nn.Module):
    def __init__(self, n_feats):
        super().__init__()
        self.layer_norm = nn.LayerNorm(n_feats)

    def forward(self, x):
        x = x.transpose(2, 3).contiguous()
        x = self.layer_norm(x)
        return x.transpose(2, 3).contiguous()


class ResidualCNN(nn.Module):
    def __init__(self, channels, kernel, stride, dropout, n_feats):
        super().__init__()
        self.cnn1 = nn.Conv2d(channels, channels, kernel, stride, padding=kernel // 2)
        self.cnn2 = nn.Conv2d(channels, channels, kernel, stride, padding=kernel // 2)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.layer_norm1, self.layer_norm2 = CNNLayerNorm(n_feats), CNNLayerNorm(n_feats)

    def forward(self, x):
        residual = x
        x = self.cnn1(self.dropout1(F.gelu(self.layer_norm1(x))))
        x = self.cnn2(self.dropout2(F.gelu(self.layer_norm2(x))))
        x += residual
        return x


class BidirectionalGRU(nn.Module):
    def __init__(self, rnn_dim, hidden_size, dropout, batch_first):
        super().__init__()
        self.gru = nn.GRU(rnn_dim, hidden_size, num_layers=1, batch_first=batch_first, bidirectional=True)
        self.layer_norm = nn.LayerNorm(rnn_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x, _ = self.gru(F.gelu(self.layer_norm(x)))
        return self.dropout(x)


class SpeechRecognitionModel(nn.Module):
    def __init__(self, n_cnn_layers, n_rnn_layers, rnn_dim, n_class, n_feats, channels=32, dropout=0.1):
        super().__init__()
        n_feats = n_feats // 2
        self.cnn = nn.Conv2d(1, channels, 3, stride=2, padding=3 // 2)
        self.rescnn_layers = nn.Sequential(*[ResidualCNN(channels, 3, 1, dropout, n_feats) for _ in range(n_cnn_layers)])
        self.fully_connected = nn.Linear(n_feats * channels, rnn_dim)
        self.birnn_layers = nn.Sequential(*[BidirectionalGRU(rnn_dim if i == 0 else rnn_dim * 2, rnn_dim, dropout, i == 0)
                                            for i in range(n_rnn_layers)])
        self.classifier = nn.Sequential(nn.Linear(rnn_dim * 2, rnn_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(rnn_dim, n_class))

    def forward(self, x):
        x = self.cnn(x)
        x = self.rescnn_layers(x)
        sizes = x.size()
        x = x.view(sizes[0], sizes[1] * sizes[2], sizes[3])
        x = x.transpose(1, 2)
        x = self.fully_connected(x)
        x = self.birnn_layers(x)
        return self.classifier(x)


def deepspeech_ctc(device, size, graphed):
    model = SpeechRecognitionModel(*size((1, 2, 16, 29, 16, 4), (3, 5, 512, 29, 128))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    criterion = nn.CTCLoss(blank=28).to(device)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-4, steps_per_epoch=1000, epochs=100,
                                                    anneal_strategy="linear")
    batch, feats, frames, letters = size((2, 16, 40, 6), (10, 128, 800, 100))
    train_loader = [(torch.randn(batch, 1, feats, frames), torch.randint(28, (batch, letters))) for _ in range(4)]
    input_lengths, label_lengths = [frames // 2] * batch, [letters] * batch
    model.train()

    @graphed
    def train_step(spectrograms, labels):
        spectrograms, labels = spectrograms.to(device), labels.to(device)
        optimizer.zero_grad()
        output = model(spectrograms)
        output = F.log_softmax(output, dim=2)
        output = output.transpose(0, 1)
        loss = criterion(output, labels, input_lengths, label_lengths)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    def loop():
        for spectrograms, labels in forever(train_loader):
            yield train_step(spectrograms, labels)

    return Program(loop, (model, optimizer, scheduler), model)
