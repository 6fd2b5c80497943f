#include <pianola/graph/seed_marks.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>

namespace pianola::graph {
namespace {

struct Marked {
  int recordings = 0;
  std::uint64_t seed = 0;  // its own
};

// Taken inside a generator's lock, never around it.
struct MarkRegistry {
  std::mutex mutex;
  std::map<const c10::GeneratorImpl*, Marked> marked;
  std::uint64_t mark = (std::uint64_t{std::random_device()()} << 32U) | 1U;
};

MarkRegistry& marks() {
  static auto* const all = new MarkRegistry;  // never destroyed: a static Graph may capture until the end
  return *all;
}

at::CPUGeneratorImpl* as_cpu(const at::Generator& generator) {
  return dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

void write_seed(at::CPUGeneratorImpl& generator, std::uint64_t seed) {
  if (generator.current_seed() == seed) return;
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  data.seed_ = seed;
  engine.set_data(data);
  generator.set_engine(engine);
}

void mark(at::CPUGeneratorImpl& generator, Marked& entry, std::uint64_t mark) {
  if (generator.current_seed() == mark && entry.recordings != 0) return;
  entry.seed = generator.current_seed();
  write_seed(generator, mark);
}

template <typename Visit>
void for_each_locked(const std::vector<at::Generator>& generators, const Visit& visit) {
  for (at::Generator generator : generators) {  // a handle, whose lock is not const
    const std::lock_guard lock(generator.mutex());
    MarkRegistry& all = marks();
    const std::lock_guard entries(all.mutex);
    visit(*as_cpu(generator), all);
  }
}

}  // namespace

// The mark of the last recordings is used up once none of them is open.
SeedMarks::SeedMarks(const std::vector<at::Generator>& generators) {
  for (const at::Generator& generator : generators) {
    const bool known = std::find(generators_.begin(), generators_.end(), generator) != generators_.end();
    if (as_cpu(generator) != nullptr && !known) generators_.push_back(generator);
  }
  {
    MarkRegistry& all = marks();
    const std::lock_guard lock(all.mutex);
    if (all.marked.empty()) all.mark += 2;
  }
  for_each_locked(generators_, [](at::CPUGeneratorImpl& generator, MarkRegistry& all) {
    Marked& entry = all.marked[&generator];
    mark(generator, entry, all.mark);
    ++entry.recordings;
  });
}

SeedMarks::~SeedMarks() {
  for_each_locked(generators_, [](at::CPUGeneratorImpl& generator, MarkRegistry& all) {
    const auto entry = all.marked.find(&generator);
    if (--entry->second.recordings != 0) return;
    if (generator.current_seed() == all.mark) write_seed(generator, entry->second.seed);
    all.marked.erase(entry);
  });
}

bool SeedMarks::intact() const {
  bool all_marked = true;
  for_each_locked(generators_, [&](at::CPUGeneratorImpl& generator, MarkRegistry& all) {
    all_marked = all_marked && generator.current_seed() == all.mark;
  });
  return all_marked;
}

void SeedMarks::renew() const {
  for_each_locked(generators_, [](at::CPUGeneratorImpl& generator, MarkRegistry& all) {
    mark(generator, all.marked.at(&generator), all.mark);
  });
}

std::uint64_t SeedMarks::seed_of(const at::Generator& generator) {
  if (as_cpu(generator) == nullptr) return generator.current_seed();
  MarkRegistry& all = marks();
  const std::lock_guard lock(all.mutex);
  const auto entry = all.marked.find(generator.unsafeGetGeneratorImpl());
  const std::uint64_t seed = generator.current_seed();
  return entry != all.marked.end() && seed == all.mark ? entry->second.seed : seed;
}

void SeedMarks::put_seed(const at::Generator& generator, std::uint64_t seed) {
  at::CPUGeneratorImpl* const cpu = as_cpu(generator);
  if (cpu == nullptr) return;
  MarkRegistry& all = marks();
  const std::lock_guard lock(all.mutex);
  const auto entry = all.marked.find(cpu);
  if (entry == all.marked.end()) return write_seed(*cpu, seed);
  entry->second.seed = seed;
  write_seed(*cpu, all.mark);
}

}  // namespace pianola::graph
