#include "harness.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace pianola::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// One sample of each contender, who take turns.
std::vector<double> run_block(const Timer& timer, std::span<const Contender> contenders, const Plan& plan, int block) {
  std::vector<double> sums(contenders.size());
  for (int turn = 0; turn < plan.turns; ++turn) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t next = (i + static_cast<std::size_t>(block + turn)) % contenders.size();
      sums[next] += timer(contenders[next].iteration, plan.iterations / plan.turns);
      if (contenders[next].after_block) contenders[next].after_block();
    }
  }
  for (double& sum : sums) sum /= plan.turns;
  return sums;
}

double quantile(std::vector<double> samples, double fraction) {
  std::sort(samples.begin(), samples.end());
  const double position = fraction * static_cast<double>(samples.size() - 1);
  const double below = samples[static_cast<std::size_t>(std::floor(position))];
  const double above = samples[static_cast<std::size_t>(std::ceil(position))];
  return below + (above - below) * (position - std::floor(position));
}

}  // namespace

Timer host_timer(std::function<void()> synchronize, int burst) {
  return [synchronize = std::move(synchronize), burst](const std::function<void()>& iteration, int count) {
    double total = 0;
    for (int done = 0; done < count; done += burst) {
      synchronize();
      const auto start = Clock::now();
      for (int i = done; i < std::min(done + burst, count); ++i) iteration();
      total += microseconds_since(start);
    }
    synchronize();
    return total / count;
  };
}

Timer middle_call_timer(std::function<void()> synchronize, int burst) {
  return [synchronize = std::move(synchronize), burst](const std::function<void()>& iteration, int count) {
    std::vector<double> middles, calls;
    for (int done = 0; done < count; done += burst) {
      synchronize();
      calls.clear();
      for (int i = done; i < std::min(done + burst, count); ++i) {
        const auto start = Clock::now();
        iteration();
        calls.push_back(microseconds_since(start));
      }
      middles.push_back(median(calls));
    }
    synchronize();
    return median(std::move(middles));
  };
}

HostAndWall time_bursts(const Contender& contender, const std::function<void()>& synchronize, int iterations,
                        int burst) {
  for (int i = 0; i < 2; ++i) contender.iteration();
  synchronize();
  HostAndWall total;
  for (int done = 0; done < iterations; done += burst) {
    const auto start = Clock::now();
    for (int i = done; i < std::min(done + burst, iterations); ++i) contender.iteration();
    total.host += microseconds_since(start);
    synchronize();
    total.wall += microseconds_since(start);
  }
  return {.host = total.host / iterations, .wall = total.wall / iterations};
}

std::vector<Series> interleave(const Timer& timer, std::span<const Contender> contenders, const Plan& plan) {
  std::vector<Series> all;
  for (const Contender& contender : contenders) all.push_back({.contender = contender.name, .samples = {}});
  run_block(timer, contenders, plan, 0);
  for (int block = 0; block < plan.blocks; ++block) {
    const std::vector<double> samples = run_block(timer, contenders, plan, block);
    for (std::size_t i = 0; i < contenders.size(); ++i) all[i].samples.push_back(samples[i]);
  }
  return all;
}

int iterations_for(double milliseconds, const Contender& contender) {
  const Timer timer = host_timer();
  timer(contender.iteration, 3);  // the first runs are slower
  return std::max(1, static_cast<int>(milliseconds * 1000 / timer(contender.iteration, 10)));
}

double median(std::vector<double> samples) { return quantile(std::move(samples), 0.5); }

double smallest(std::span<const double> samples) { return *std::min_element(samples.begin(), samples.end()); }

double spread(std::vector<double> samples) { return quantile(samples, 0.75) - quantile(samples, 0.25); }

}  // namespace pianola::bench
