"""Networks on graphs."""

import dataclasses

import numpy as np
import torch
from program import Program
from torch import nn
from torch.nn import functional as F


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        stdv = 1.0 / np.sqrt(out_features)
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.spmm(adj, support)
        return output + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, adj)
        return F.log_softmax(x, dim=1)


def _graph(size, device):
    nodes, features, classes = size((40, 12, 4), (2708, 1433, 7))
    edges = torch.randint(nodes, (2, nodes * 4))
    edges = torch.cat([edges, edges.flip(0), torch.arange(nodes).repeat(2, 1)], dim=1).unique(dim=1)
    adj = torch.sparse_coo_tensor(edges, torch.full((edges.shape[1],), 1 / 8), (nodes, nodes)).coalesce()
    return (torch.rand(nodes, features).to(device), adj.to(device), edges.to(device),
            torch.randint(classes, (nodes,)).to(device), classes)


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    correct = preds.eq(labels).double()
    return correct.sum() / len(labels)


def gcn(device, size, graphed):
    features, adj, _, labels, classes = _graph(size, device)
    model = GCN(features.shape[1], 16, classes, 0.5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    idx_train = torch.arange(size(20, 140)).to(device)

    @graphed
    def train(epoch):
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        acc_train = accuracy(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        return epoch, loss_train.item(), acc_train.item()

    def loop():
        epoch = 0
        while True:
            yield train(epoch)
            epoch += 1

    return Program(loop, (model, optimizer), model)


@dataclasses.dataclass
class Data:
    """As torch_geometric.data.Data and its Batch: tensors by name, moved together."""

    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor
    batch: torch.Tensor = None
    train_mask: torch.Tensor = None
    num_graphs: int = 1

    def to(self, device):
        return dataclasses.replace(self, **{name: value.to(device) for name, value in vars(self).items()
                                            if isinstance(value, torch.Tensor)})


class GCNConv(nn.Module):
    """Kipf and Welling's, over an edge list."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin, self.bias = nn.Linear(inputs, outputs, bias=False), nn.Parameter(torch.zeros(outputs))

    def forward(self, x, edge_index):
        source, target = edge_index
        degree = torch.zeros(x.size(0), device=x.device).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        norm = degree.pow(-0.5)
        norm = norm[source] * norm[target]
        x = self.lin(x)
        return torch.zeros_like(x).index_add_(0, target, x[source] * norm[:, None]) + self.bias


def gcn_masked(device, size, graphed):
    x, _, edges, labels, classes = _graph(size, device)
    mask = torch.zeros(len(labels), dtype=torch.bool, device=device)
    mask[: size(20, 140)] = True
    data = Data(x, edges, labels, train_mask=mask)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = GCNConv(x.shape[1], 16)
            self.conv2 = GCNConv(16, classes)

        def forward(self, data):
            x, edge_index = data.x, data.edge_index
            x = self.conv1(x, edge_index)
            x = F.relu(x)
            x = F.dropout(x, training=self.training)
            x = self.conv2(x, edge_index)
            return F.log_softmax(x, dim=1)

    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()

    @graphed
    def train():
        optimizer.zero_grad()
        out = model(data)
        loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        while True:
            yield train()

    return Program(loop, (model, optimizer), model)


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, dropout, alpha, concat=True):
        super().__init__()
        self.dropout, self.out_features, self.concat = dropout, out_features, concat
        self.W = nn.Parameter(torch.empty(size=(in_features, out_features)))
        nn.init.xavier_uniform_(self.W.data, gain=1.414)
        self.a = nn.Parameter(torch.empty(size=(2 * out_features, 1)))
        nn.init.xavier_uniform_(self.a.data, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        Wh = torch.mm(h, self.W)
        Wh1 = torch.matmul(Wh, self.a[: self.out_features, :])
        Wh2 = torch.matmul(Wh, self.a[self.out_features:, :])
        e = self.leakyrelu(Wh1 + Wh2.T)
        zero_vec = -9e15 * torch.ones_like(e)
        attention = torch.where(adj > 0, e, zero_vec)
        attention = F.softmax(attention, dim=1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = torch.matmul(attention, Wh)
        return F.elu(h_prime) if self.concat else h_prime


def gat(device, size, graphed):
    features, adj, _, labels, classes = _graph(size, device)
    adj = adj.to_dense()

    class GAT(nn.Module):
        def __init__(self, nfeat, nhid, nclass, dropout, alpha, nheads):
            super().__init__()
            self.dropout = dropout
            self.attentions = [GraphAttentionLayer(nfeat, nhid, dropout, alpha) for _ in range(nheads)]
            for i, attention in enumerate(self.attentions):
                self.add_module("attention_{}".format(i), attention)
            self.out_att = GraphAttentionLayer(nhid * nheads, nclass, dropout, alpha, concat=False)

        def forward(self, x, adj):
            x = F.dropout(x, self.dropout, training=self.training)
            x = torch.cat([att(x, adj) for att in self.attentions], dim=1)
            x = F.dropout(x, self.dropout, training=self.training)
            x = F.elu(self.out_att(x, adj))
            return F.log_softmax(x, dim=1)

    model = GAT(features.shape[1], 8, classes, 0.6, 0.2, size(2, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    idx_train = torch.arange(size(20, 140)).to(device)

    @graphed
    def train(epoch):
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        return loss_train.data

    def loop():
        epoch = 0
        while True:
            yield train(epoch)
            epoch += 1

    return Program(loop, (model, optimizer), model)


class GINConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Linear(outputs, outputs), nn.ReLU())
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x, edge_index):
        source, target = edge_index
        out = torch.zeros_like(x).index_add_(0, target, x[source])
        return self.nn(out + (1 + self.eps) * x)


def gin_batches(device, size, graphed):
    graphs, nodes, features, width = size((4, 5, 6, 16), (128, 20, 32, 64))
    loader = []
    for _ in range(4):
        edges = torch.cat([torch.randint(nodes, (2, nodes * 3)) + i * nodes for i in range(graphs)], dim=1)
        loader.append(Data(torch.rand(graphs * nodes, features), edges, torch.randint(2, (graphs,)),
                           torch.arange(graphs).repeat_interleave(nodes), num_graphs=graphs))

    class GIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([GINConv(features, width), GINConv(width, width), GINConv(width, width)])
            self.lin1, self.lin2 = nn.Linear(width * 3, width), nn.Linear(width, 2)

        def forward(self, x, edge_index, batch, num_graphs):
            pooled = []
            for conv in self.convs:
                x = conv(x, edge_index)
                pooled.append(torch.zeros(num_graphs, x.size(1), device=x.device).index_add_(0, batch, x))
            h = F.relu(self.lin1(torch.cat(pooled, dim=1)))
            return self.lin2(F.dropout(h, p=0.5, training=self.training))

    model = GIN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = torch.nn.CrossEntropyLoss()
    model.train()

    @graphed
    def train_step(data):
        data = data.to(device)
        out = model(data.x, data.edge_index, data.batch, data.num_graphs)
        loss = criterion(out, data.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def loop():
        while True:
            for data in loader:
                yield train_step(data)

    return Program(loop, (model, optimizer))
