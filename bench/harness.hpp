#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pianola::bench {

/// One of the ways to do the work that a benchmark compares.
struct Contender {
  std::string name;
  std::function<void()> iteration;         ///< Does the work once.
  std::function<void()> after_block = {};  ///< Clears away what a block left; not timed.
};

/// The samples of one contender, one per block.
struct Series {
  std::string contender;
  std::vector<double> samples;
};

/// Runs an iteration `count` times; returns microseconds per iteration.
using Timer = std::function<double(const std::function<void()>& iteration, int count)>;

/// Host time of the calls. Calls `synchronize`, untimed, before each burst of at most `burst` iterations and at the end,
/// so that the calls never wait for a queue that is full.
Timer host_timer(
    std::function<void()> synchronize = [] {}, int burst = 50);

/// Host time of the middle call of each burst, by their times: of one whose code and data are in the cache, as they are
/// where iterations follow each other. The first call after a wait takes many times as long, a bare launch as well.
Timer middle_call_timer(std::function<void()> synchronize, int burst);

/// Microseconds per iteration.
struct HostAndWall {
  double host = 0;  ///< Until the calls have returned.
  double wall = 0;  ///< Until their work is done.
};

/// Both times of the same bursts, each of which ends with `synchronize`; one of two iterations, untimed, comes before.
HostAndWall time_bursts(const Contender& contender, const std::function<void()>& synchronize, int iterations,
                        int burst);

struct Plan {
  int blocks = 20;      ///< Samples per contender.
  int iterations = 50;  ///< Iterations per block, whose mean is the sample.
  int turns = 1;        ///< Pieces into which a block is cut, so that the contenders take turns within it too.
};

/// Times the contenders in turn, so that a machine that slows down slows them all. Each turn begins with another
/// contender; one round comes before that and does not count.
std::vector<Series> interleave(const Timer& timer, std::span<const Contender> contenders, const Plan& plan);

/// How many iterations take about `milliseconds`, at least one.
int iterations_for(double milliseconds, const Contender& contender);

double median(std::vector<double> samples);
double smallest(std::span<const double> samples);
/// Half of the samples lie within this distance of each other: third quartile minus first.
double spread(std::vector<double> samples);

}  // namespace pianola::bench
