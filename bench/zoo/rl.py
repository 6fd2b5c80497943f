"""Updates of agents from batches of a replay buffer or a rollout."""

import numpy as np
import torch
from program import Program, forever
from torch import nn
from torch.nn import functional as F


def mlp(*widths, last=None):
    layers = []
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        layers.append(nn.Linear(inputs, outputs))
        if i < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers, *([last] if last else []))


def _transitions(device, batch, observations, actions=None, count=4):
    """(observations, actions, next observations, rewards, dones); discrete actions where `actions` is None."""
    made = []
    for _ in range(count):
        acts = torch.randint(2, (batch, 1)) if actions is None else torch.rand(batch, actions) * 2 - 1
        parts = (torch.randn(batch, observations), acts, torch.randn(batch, observations), torch.randn(batch),
                 (torch.rand(batch) < 0.1).float())
        made.append(tuple(part.to(device) for part in parts))
    return made


def dqn_tutorial(device, size, graphed):
    n_observations, n_actions, BATCH_SIZE, GAMMA, TAU = 4, 2, size(16, 128), 0.99, 0.005
    policy_net = mlp(n_observations, 128, 128, n_actions).to(device)
    target_net = mlp(n_observations, 128, 128, n_actions).to(device)
    target_net.load_state_dict(policy_net.state_dict())
    optimizer = torch.optim.AdamW(policy_net.parameters(), lr=3e-4, amsgrad=True)

    @graphed
    def optimize_model(state_batch, action_batch, reward_batch, non_final_mask, non_final_next_states):
        state_action_values = policy_net(state_batch).gather(1, action_batch)
        next_state_values = torch.zeros(BATCH_SIZE, device=device)
        with torch.no_grad():
            next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
        expected_state_action_values = (next_state_values * GAMMA) + reward_batch
        criterion = nn.SmoothL1Loss()
        loss = criterion(state_action_values, expected_state_action_values.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
        optimizer.step()
        return loss.item()

    def loop():
        for states, actions, next_states, rewards, dones in forever(_transitions(device, BATCH_SIZE, n_observations)):
            mask = dones == 0
            loss = optimize_model(states, actions, rewards, mask, next_states[mask])
            target_net_state_dict, policy_net_state_dict = target_net.state_dict(), policy_net.state_dict()
            for key in policy_net_state_dict:
                target_net_state_dict[key] = policy_net_state_dict[key] * TAU + target_net_state_dict[key] * (1 - TAU)
            target_net.load_state_dict(target_net_state_dict)
            yield loss

    return Program(loop, (policy_net, target_net, optimizer), policy_net)


def dqn(device, size, graphed):
    q_network, target_network = mlp(4, 120, 84, 2).to(device), mlp(4, 120, 84, 2).to(device)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
    target_network.load_state_dict(q_network.state_dict())
    gamma, tau, target_network_frequency = 0.99, 1.0, 50

    @graphed
    def update(observations, actions, next_observations, rewards, dones):
        with torch.no_grad():
            target_max, _ = target_network(next_observations).max(dim=1)
            td_target = rewards.flatten() + gamma * target_max * (1 - dones.flatten())
        old_val = q_network(observations).gather(1, actions).squeeze()
        loss = F.mse_loss(td_target, old_val)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), old_val.mean().item()

    def loop():
        for global_step, data in enumerate(forever(_transitions(device, size(16, 128), 4))):
            yield update(*data)
            if global_step % target_network_frequency == 0:
                for target_param, q_param in zip(target_network.parameters(), q_network.parameters()):
                    target_param.data.copy_(tau * q_param.data + (1.0 - tau) * target_param.data)

    return Program(loop, (q_network, target_network, optimizer), q_network)


def td3(device, size, graphed):
    observations, actions, width = 17, 6, size(32, 256)

    class QNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(observations + actions, width, width, 1)

        def forward(self, x, a):
            return self.net(torch.cat([x, a], 1))

    def actor_network():
        return mlp(observations, width, width, actions, last=nn.Tanh()).to(device)

    actor, target_actor = actor_network(), actor_network()
    qf1, qf2, qf1_target, qf2_target = (QNetwork().to(device) for _ in range(4))
    target_actor.load_state_dict(actor.state_dict())
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = torch.optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=3e-4)
    actor_optimizer = torch.optim.Adam(list(actor.parameters()), lr=3e-4)
    gamma, tau, policy_noise, noise_clip, policy_frequency = 0.99, 0.005, 0.2, 0.5, 2

    @graphed
    def update(obs, acts, next_obs, rewards, dones, global_step):
        with torch.no_grad():
            clipped_noise = (torch.randn_like(acts, device=device) * policy_noise).clamp(-noise_clip, noise_clip)
            next_state_actions = (target_actor(next_obs) + clipped_noise).clamp(-1.0, 1.0)
            qf1_next_target = qf1_target(next_obs, next_state_actions)
            qf2_next_target = qf2_target(next_obs, next_state_actions)
            min_qf_next_target = torch.min(qf1_next_target, qf2_next_target)
            next_q_value = rewards.flatten() + (1 - dones.flatten()) * gamma * (min_qf_next_target).view(-1)
        qf1_a_values, qf2_a_values = qf1(obs, acts).view(-1), qf2(obs, acts).view(-1)
        qf_loss = F.mse_loss(qf1_a_values, next_q_value) + F.mse_loss(qf2_a_values, next_q_value)
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()
        if global_step % policy_frequency == 0:
            actor_loss = -qf1(obs, actor(obs)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            for net, target in ((actor, target_actor), (qf1, qf1_target), (qf2, qf2_target)):
                for param, target_param in zip(net.parameters(), target.parameters()):
                    target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)
        return qf_loss

    def loop():
        for global_step, data in enumerate(forever(_transitions(device, size(16, 256), observations, actions))):
            yield update(*data, global_step)

    return Program(loop, (actor, target_actor, qf1, qf2, qf1_target, qf2_target, q_optimizer, actor_optimizer))


def ppo(device, size, graphed):
    def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
        torch.nn.init.orthogonal_(layer.weight, std)
        torch.nn.init.constant_(layer.bias, bias_const)
        return layer

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                                        layer_init(nn.Linear(64, 1), std=1.0))
            self.actor = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                                       layer_init(nn.Linear(64, 2), std=0.01))

        def get_action_and_value(self, x, action=None):
            logits = self.actor(x)
            probs = torch.distributions.categorical.Categorical(logits=logits)
            if action is None:
                action = probs.sample()
            return action, probs.log_prob(action), probs.entropy(), self.critic(x)

    agent = Agent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    clip_coef, ent_coef, vf_coef, max_grad_norm = 0.2, 0.01, 0.5, 0.5
    minibatch = size(16, 128)
    rollout = [tuple(part.to(device) for part in (torch.randn(minibatch, 4), torch.randint(2, (minibatch,)),
                                                  torch.full((minibatch,), -0.69), torch.randn(minibatch), torch.randn(minibatch),
                                                  torch.randn(minibatch))) for _ in range(4)]

    @graphed
    def update(mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values):
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(mb_obs, mb_actions.long())
        logratio = newlogprob - mb_logprobs
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfrac = ((ratio - 1.0).abs() > clip_coef).float().mean().item()
        mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
        pg_loss1 = -mb_advantages * ratio
        pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
        pg_loss = torch.max(pg_loss1, pg_loss2).mean()
        newvalue = newvalue.view(-1)
        v_loss_unclipped = (newvalue - mb_returns) ** 2
        v_clipped = mb_values + torch.clamp(newvalue - mb_values, -clip_coef, clip_coef)
        v_loss = 0.5 * torch.max(v_loss_unclipped, (v_clipped - mb_returns) ** 2).mean()
        loss = pg_loss - ent_coef * entropy.mean() + v_loss * vf_coef
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
        optimizer.step()
        return loss, approx_kl, clipfrac

    def loop():
        for minibatch in forever(rollout):
            yield update(*minibatch)

    return Program(loop, (agent, optimizer), agent)


def sac(device, size, graphed):
    observations, actions, width = 17, 6, size(32, 256)

    class SoftQNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(observations + actions, width, width, 1)

        def forward(self, x, a):
            return self.net(torch.cat([x, a], 1))

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(observations, width), nn.Linear(width, width)
            self.fc_mean, self.fc_logstd = nn.Linear(width, actions), nn.Linear(width, actions)

        def get_action(self, x):
            x = F.relu(self.fc2(F.relu(self.fc1(x))))
            mean, log_std = self.fc_mean(x), torch.tanh(self.fc_logstd(x))
            log_std = -5 + 0.5 * (2 + 5) * (log_std + 1)
            normal = torch.distributions.Normal(mean, log_std.exp())
            x_t = normal.rsample()
            y_t = torch.tanh(x_t)
            log_prob = normal.log_prob(x_t) - torch.log(1 - y_t.pow(2) + 1e-6)
            return y_t, log_prob.sum(1, keepdim=True)

    actor = Actor().to(device)
    qf1, qf2, qf1_target, qf2_target = (SoftQNetwork().to(device) for _ in range(4))
    q_optimizer = torch.optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-3)
    actor_optimizer = torch.optim.Adam(list(actor.parameters()), lr=3e-4)
    target_entropy = -actions
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    a_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    alpha = log_alpha.exp().item()
    gamma, tau = 0.99, 0.005

    @graphed
    def update(obs, acts, next_obs, rewards, dones):
        nonlocal alpha
        with torch.no_grad():
            next_state_actions, next_state_log_pi = actor.get_action(next_obs)
            min_qf_next_target = torch.min(qf1_target(next_obs, next_state_actions),
                                           qf2_target(next_obs, next_state_actions)) - alpha * next_state_log_pi
            next_q_value = rewards.flatten() + (1 - dones.flatten()) * gamma * (min_qf_next_target).view(-1)
        qf_loss = F.mse_loss(qf1(obs, acts).view(-1), next_q_value) + F.mse_loss(qf2(obs, acts).view(-1), next_q_value)
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()
        pi, log_pi = actor.get_action(obs)
        actor_loss = ((alpha * log_pi) - torch.min(qf1(obs, pi), qf2(obs, pi))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            _, log_pi = actor.get_action(obs)
        alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
        a_optimizer.zero_grad()
        alpha_loss.backward()
        a_optimizer.step()
        alpha = log_alpha.exp().item()
        for q, target in ((qf1, qf1_target), (qf2, qf2_target)):
            for param, target_param in zip(q.parameters(), target.parameters()):
                target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)
        return qf_loss, actor_loss, alpha

    def loop():
        for data in forever(_transitions(device, size(16, 256), observations, actions)):
            yield update(*data)

    return Program(loop, (actor, qf1, qf2, qf1_target, qf2_target, q_optimizer, actor_optimizer, a_optimizer, log_alpha))
