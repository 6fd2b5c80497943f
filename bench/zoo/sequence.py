"""Recurrent networks and transformers on sequences."""

import math

import torch
from program import Program, forever, words
from torch import nn
from torch.nn import functional as F


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def word_lm(device, size, graphed):
    ntokens, width, batch_size, bptt, lr, clip = *size((50, 16, 2, 5), (33278, 650, 20, 35)), 20, 0.25
    model = RNNModel(ntokens, width, width, 2, 0.2).to(device)
    criterion = nn.NLLLoss()
    batches = [(data, targets.view(-1)) for (data,), (targets,) in
               zip(*(words(bptt, batch_size, ntokens, device) for _ in range(2)))]
    model.train()

    @graphed
    def train_step(data, targets, hidden):
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        return loss.item(), hidden

    def loop():
        hidden = model.init_hidden(batch_size)
        total_loss = 0.0
        for data, targets in forever(batches):
            loss, hidden = train_step(data, targets, hidden)
            total_loss += loss
            yield total_loss, hidden

    return Program(loop, (model,), model)


def packed_lstm(device, size, graphed):
    class LSTMClassifier(nn.Module):
        def __init__(self, vocab_size, embedding_dim, hidden_dim):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
            self.rnn = nn.LSTM(embedding_dim, hidden_dim, num_layers=2, bidirectional=True, dropout=0.5, batch_first=True)
            self.fc = nn.Linear(hidden_dim * 2, 1)
            self.dropout = nn.Dropout(0.5)

        def forward(self, text, text_lengths):
            embedded = self.dropout(self.embedding(text))
            packed_embedded = nn.utils.rnn.pack_padded_sequence(embedded, text_lengths, batch_first=True, enforce_sorted=False)
            packed_output, (hidden, cell) = self.rnn(packed_embedded)
            hidden = self.dropout(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))
            return self.fc(hidden)

    vocabulary, embedding, hidden, batch, length = size((50, 8, 8, 4, 8), (25_000, 100, 256, 64, 200))
    model = LSTMClassifier(vocabulary, embedding, hidden).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.BCEWithLogitsLoss().to(device)
    lengths = torch.randint(2, length + 1, (batch,))
    lengths[0] = length
    iterator = [(text, lengths, torch.randint(2, (batch,)).float()) for (text,) in words(batch, length, vocabulary)]
    model.train()

    @graphed
    def train_step(text, text_lengths, label):
        text, label = text.to(device), label.to(device)
        optimizer.zero_grad()
        predictions = model(text, text_lengths).squeeze(1)
        loss = criterion(predictions, label)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for text, text_lengths, label in forever(iterator):
            yield train_step(text, text_lengths, label)

    return Program(loop, (model, optimizer))


def lstm_forecast(device, size, graphed):
    class Forecast(nn.Module):
        def __init__(self, input_size, hidden_size, num_layers):
            super().__init__()
            self.hidden_size, self.num_layers = hidden_size, num_layers
            self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)
            self.fc = nn.Linear(hidden_size, 1)

        def forward(self, x):
            h0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(x.device)
            c0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(x.device)
            out, _ = self.lstm(x, (h0, c0))
            return self.fc(out[:, -1, :])

    batch, length, hidden = size((4, 6, 8), (64, 96, 256))
    model = Forecast(5, hidden, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = [(torch.randn(batch, length, 5).to(device), torch.randn(batch, 1).to(device)) for _ in range(4)]
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def char_rnn(device, size, graphed):
    class CharRNN(nn.Module):
        def __init__(self, input_size, hidden_size, output_size):
            super().__init__()
            self.rnn = nn.RNN(input_size, hidden_size)
            self.h2o = nn.Linear(hidden_size, output_size)
            self.softmax = nn.LogSoftmax(dim=1)

        def forward(self, line_tensor):
            rnn_out, hidden = self.rnn(line_tensor)
            output = self.h2o(hidden[0])
            return self.softmax(output)

    letters, length, batch = 58, 8, size(4, 64)
    rnn = CharRNN(letters, 128, 18).to(device)
    criterion = nn.NLLLoss()
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.15)
    loader = [(F.one_hot(torch.randint(letters, (length, batch)), letters).float().to(device),
               torch.randint(18, (batch,)).to(device)) for _ in range(4)]
    rnn.train()

    @graphed
    def train_step(text_tensor, label_tensor):
        rnn.zero_grad()
        output = rnn.forward(text_tensor)
        loss = criterion(output, label_tensor)
        loss.backward()
        nn.utils.clip_grad_norm_(rnn.parameters(), 3)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def loop():
        current_loss = 0
        for text_tensor, label_tensor in forever(loader):
            current_loss += train_step(text_tensor, label_tensor)
            yield current_loss

    return Program(loop, (rnn, optimizer), rnn)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers, dropout=0.5):
        super().__init__()
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        encoder_layers = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout)
        self.transformer_encoder = nn.TransformerEncoder(encoder_layers, nlayers)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask=None):
        src = self.embedding(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src)).to(src.device)
        output = self.transformer_encoder(src, src_mask)
        return self.linear(output)


def transformer_lm(device, size, graphed):
    ntokens, d_model, nhead, d_hid, nlayers, batch_size, bptt = size((50, 16, 2, 16, 2, 2, 5), (28782, 200, 2, 200, 2, 20, 35))
    model = TransformerModel(ntokens, d_model, nhead, d_hid, nlayers, 0.2).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.95)
    batches = [(data, targets.reshape(-1)) for (data,), (targets,) in
               zip(*(words(bptt, batch_size, ntokens, device) for _ in range(2)))]
    model.train()

    @graphed
    def train_step(data, targets):
        output = model(data)
        output_flat = output.view(-1, ntokens)
        loss = criterion(output_flat, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    def loop():
        for i, (data, targets) in enumerate(forever(batches)):
            yield train_step(data, targets).item()
            if i % 80 == 79:
                scheduler.step()

    return Program(loop, (model, optimizer, scheduler), model)
