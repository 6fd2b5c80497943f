"""Embeddings of users, items and fields."""

import numpy as np
import torch
from program import Program, forever
from torch import nn
from torch.nn import functional as F


class DLRM(nn.Module):
    def __init__(self, rows, m_spa, ln_bot, top_width):
        super().__init__()
        self.emb_l = nn.ModuleList([nn.EmbeddingBag(n, m_spa, mode="sum", sparse=True) for n in rows])
        self.bot_l = nn.Sequential(*[layer for i, o in zip(ln_bot, ln_bot[1:]) for layer in (nn.Linear(i, o), nn.ReLU())])
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top_l = nn.Sequential(nn.Linear(m_spa + pairs, top_width), nn.ReLU(), nn.Linear(top_width, 1), nn.Sigmoid())

    def interact_features(self, x, ly):
        (batch_size, d) = x.shape
        T = torch.cat([x] + ly, dim=1).view((batch_size, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i + 0)])
        lj = torch.tensor([j for i in range(nj) for j in range(i + 0)])
        Zflat = Z[:, li, lj]
        return torch.cat([x] + [Zflat], dim=1)

    def forward(self, dense_x, lS_o, lS_i):
        x = self.bot_l(dense_x)
        ly = [E(indices, offsets) for E, indices, offsets in zip(self.emb_l, lS_i, lS_o)]
        return self.top_l(self.interact_features(x, ly))


def dlrm(device, size, graphed):
    rows, m_spa, width = size(([50, 30, 20], 8, 16), ([100_000] * 26, 64, 512))
    model = DLRM(rows, m_spa, [13, width, m_spa], width).to(device)
    loss_fn = nn.BCELoss(reduction="mean")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, hots = size(16, 2048), 2
    loader = []
    for _ in range(4):
        lS_i = torch.stack([torch.randint(n, (batch * hots,)) for n in rows]).to(device)
        lS_o = torch.stack([torch.arange(0, batch * hots, hots) for n in rows]).to(device)
        loader.append((torch.rand(batch, 13).to(device), lS_o, lS_i, torch.randint(2, (batch, 1)).float().to(device)))

    @graphed
    def train_step(X, lS_o, lS_i, T):
        Z = model(X, lS_o, lS_i)
        E = loss_fn(Z, T)
        optimizer.zero_grad()
        E.backward()
        optimizer.step()
        return E

    def loop():
        for X, lS_o, lS_i, T in forever(loader):
            yield train_step(X, lS_o, lS_i, T)

    return Program(loop, (model, optimizer), model)


class NCF(nn.Module):
    def __init__(self, user_num, item_num, factor_num, num_layers, dropout, sparse=False):
        super().__init__()
        self.embed_user_GMF = nn.Embedding(user_num, factor_num, sparse=sparse)
        self.embed_item_GMF = nn.Embedding(item_num, factor_num, sparse=sparse)
        self.embed_user_MLP = nn.Embedding(user_num, factor_num * (2 ** (num_layers - 1)), sparse=sparse)
        self.embed_item_MLP = nn.Embedding(item_num, factor_num * (2 ** (num_layers - 1)), sparse=sparse)
        MLP_modules = []
        for i in range(num_layers):
            input_size = factor_num * (2 ** (num_layers - i))
            MLP_modules += [nn.Dropout(p=dropout), nn.Linear(input_size, input_size // 2), nn.ReLU()]
        self.MLP_layers = nn.Sequential(*MLP_modules)
        self.predict_layer = nn.Linear(factor_num * 2, 1)

    def forward(self, user, item):
        output_GMF = self.embed_user_GMF(user) * self.embed_item_GMF(item)
        interaction = torch.cat((self.embed_user_MLP(user), self.embed_item_MLP(item)), -1)
        concat = torch.cat((output_GMF, self.MLP_layers(interaction)), -1)
        return self.predict_layer(concat).view(-1)


def _ratings(batch, users, items, count=4):
    return [(torch.randint(users, (batch,)), torch.randint(items, (batch,)), torch.randint(2, (batch,))) for _ in range(count)]


def ncf(device, size, graphed):
    users, items, factors = size((50, 40, 8), (100_000, 50_000, 32))
    model = NCF(users, items, factors, 3, 0.1).to(device)
    loss_function = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    train_loader = _ratings(size(16, 4096), users, items)
    model.train()

    @graphed
    def train_step(user, item, label):
        user = user.to(device)
        item = item.to(device)
        label = label.float().to(device)
        model.zero_grad()
        prediction = model(user, item)
        loss = loss_function(prediction, label)
        loss.backward()
        optimizer.step()
        return loss.item()

    def loop():
        for user, item, label in forever(train_loader):
            yield train_step(user, item, label)

    return Program(loop, (model, optimizer), model)


def ncf_sparse_adam(device, size, graphed):
    users, items, factors = size((50, 40, 8), (100_000, 50_000, 32))
    model = NCF(users, items, factors, 3, 0.1, sparse=True).to(device)
    loss_function = nn.BCEWithLogitsLoss()
    embeddings = [p for n, p in model.named_parameters() if n.startswith("embed")]
    rest = [p for n, p in model.named_parameters() if not n.startswith("embed")]
    optimizers = [torch.optim.SparseAdam(embeddings, lr=0.001), torch.optim.Adam(rest, lr=0.001)]
    train_loader = [tuple(part.to(device) for part in batch) for batch in _ratings(size(16, 4096), users, items)]
    model.train()

    @graphed
    def train_step(user, item, label):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_function(model(user, item), label.float())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    def loop():
        for user, item, label in forever(train_loader):
            yield train_step(user, item, label)

    return Program(loop, (model, *optimizers), model)


class DeepFM(nn.Module):
    def __init__(self, feature_sizes, embedding_size, hidden, dropout):
        super().__init__()
        self.fm_first_order = nn.ModuleList([nn.Embedding(n, 1) for n in feature_sizes])
        self.fm_second_order = nn.ModuleList([nn.Embedding(n, embedding_size) for n in feature_sizes])
        self.deep = nn.Sequential(nn.Linear(len(feature_sizes) * embedding_size, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                                  nn.Dropout(dropout), nn.Linear(hidden, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, Xi):
        first = torch.cat([emb(Xi[:, i]) for i, emb in enumerate(self.fm_first_order)], 1)
        second = [emb(Xi[:, i]) for i, emb in enumerate(self.fm_second_order)]
        summed = sum(second)
        interaction = 0.5 * (summed * summed - sum(e * e for e in second))
        deep = self.deep(torch.cat(second, 1))
        return first.sum(1) + interaction.sum(1) + deep.sum(1) + self.bias


def deepfm(device, size, graphed):
    sizes, width, hidden = size(([20] * 5, 4, 16), ([10_000] * 39, 16, 400))
    model = DeepFM(sizes, width, hidden, 0.5).to(device)
    optim = torch.optim.Adagrad(model.parameters(), lr=0.01)
    batch = size(16, 4096)
    train_loader = [(torch.randint(sizes[0], (batch, len(sizes))).to(device), torch.randint(2, (batch,)).float().to(device))
                    for _ in range(4)]
    l2_reg = 1e-5
    model.train()

    @graphed
    def train_step(x, y):
        y_pred = model(x)
        optim.zero_grad()
        loss = F.binary_cross_entropy_with_logits(y_pred, y, reduction="mean")
        reg_loss = torch.zeros((1,), device=device)
        for p in model.parameters():
            reg_loss += torch.sum(l2_reg * torch.square(p))
        total_loss = loss + reg_loss
        total_loss.backward()
        optim.step()
        return loss, total_loss

    def loop():
        for x, y in forever(train_loader):
            yield train_step(x, y)

    return Program(loop, (model, optim), model)


def two_tower(device, size, graphed):
    users, items, width = size((50, 40, 8), (200_000, 100_000, 128))

    class TwoTower(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Sequential(nn.Embedding(users, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            self.candidate = nn.Sequential(nn.Embedding(items, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

        def forward(self, user_ids, item_ids):
            return F.normalize(self.query(user_ids), dim=-1) @ F.normalize(self.candidate(item_ids), dim=-1).T

    model = TwoTower().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = [(user.to(device), item.to(device)) for user, item, _ in _ratings(size(16, 4096), users, items)]

    @graphed
    def train_step(user_ids, item_ids):
        scores = model(user_ids, item_ids) / 0.05
        labels = torch.arange(scores.shape[0], device=scores.device)
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for user_ids, item_ids in forever(loader):
            yield train_step(user_ids, item_ids)

    return Program(loop, (model, optimizer), model)


class SASRec(nn.Module):
    def __init__(self, item_num, hidden_units, maxlen, num_blocks, num_heads, dropout_rate, dev):
        super().__init__()
        self.dev = dev
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen + 1, hidden_units, padding_idx=0)
        self.emb_dropout = nn.Dropout(p=dropout_rate)
        self.attention_layernorms = nn.ModuleList([nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks)])
        self.attention_layers = nn.ModuleList([nn.MultiheadAttention(hidden_units, num_heads, dropout_rate)
                                               for _ in range(num_blocks)])
        self.forward_layers = nn.ModuleList([nn.Sequential(nn.Linear(hidden_units, hidden_units), nn.Dropout(dropout_rate),
                                                           nn.ReLU(), nn.Linear(hidden_units, hidden_units))
                                             for _ in range(num_blocks)])
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)

    def log2feats(self, log_seqs):
        seqs = self.item_emb(torch.LongTensor(log_seqs).to(self.dev))
        seqs *= self.item_emb.embedding_dim ** 0.5
        poss = np.tile(np.arange(1, log_seqs.shape[1] + 1), [log_seqs.shape[0], 1])
        poss *= (log_seqs != 0)
        seqs += self.pos_emb(torch.LongTensor(poss).to(self.dev))
        seqs = self.emb_dropout(seqs)
        tl = seqs.shape[1]
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=self.dev))
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            seqs = Q + mha_outputs
            seqs = torch.transpose(seqs, 0, 1)
            seqs = seqs + self.forward_layers[i](seqs)
        return self.last_layernorm(seqs)

    def forward(self, user_ids, log_seqs, pos_seqs, neg_seqs):
        log_feats = self.log2feats(log_seqs)
        pos_embs = self.item_emb(torch.LongTensor(pos_seqs).to(self.dev))
        neg_embs = self.item_emb(torch.LongTensor(neg_seqs).to(self.dev))
        return (log_feats * pos_embs).sum(dim=-1), (log_feats * neg_embs).sum(dim=-1)


def sasrec(device, size, graphed):
    item_num, hidden_units, maxlen, batch = size((30, 16, 8, 4), (50_000, 50, 200, 128))
    model = SASRec(item_num, hidden_units, maxlen, 2, 1, 0.2, device).to(device)
    bce_criterion = torch.nn.BCEWithLogitsLoss()
    adam_optimizer = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98))

    def sampler():
        while True:
            seq, pos, neg = (np.random.randint(1, item_num + 1, (batch, maxlen)) for _ in range(3))
            padding = np.arange(maxlen) < np.random.randint(0, maxlen // 2, (batch, 1))
            seq[padding] = 0
            pos[padding] = 0
            yield np.arange(batch), seq, pos, neg

    model.train()

    @graphed
    def train_step(u, seq, pos, neg):
        pos_logits, neg_logits = model(u, seq, pos, neg)
        pos_labels, neg_labels = torch.ones(pos_logits.shape, device=device), torch.zeros(neg_logits.shape, device=device)
        adam_optimizer.zero_grad()
        indices = np.where(pos != 0)
        loss = bce_criterion(pos_logits[indices], pos_labels[indices])
        loss += bce_criterion(neg_logits[indices], neg_labels[indices])
        loss.backward()
        adam_optimizer.step()
        return loss.item()

    def loop():
        for u, seq, pos, neg in sampler():
            yield train_step(u, seq, pos, neg)

    return Program(loop, (model, adam_optimizer), model)
