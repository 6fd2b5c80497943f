#include <pianola/profile/testing/nsight_file.hpp>

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace pianola::profiling {
namespace {

// As documented in the User Guide, without the columns that say how a kernel was configured.
constexpr const char* kSchema = R"sql(
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2026.1.1.204'), ('EXPORT_SCHEMA_VERSION', '3.24.14');
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, smCount INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (
  gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT NOT NULL, numMultiprocessors INTEGER NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
  start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, graphNodeId INTEGER, graphId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
  copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,
  bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER);
CREATE TABLE NVTX_EVENTS (
  start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
  text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
INSERT INTO NVTX_EVENTS (start, eventType, text, domainId) VALUES (1, 75, 'CCCL', 1);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (2, 34, 'a mark', 1);
)sql";

struct Close {
  void operator()(sqlite3* database) const { (void)sqlite3_close(database); }
};
using Database = std::unique_ptr<sqlite3, Close>;

void check(bool good, sqlite3* database) {
  if (good) return;
  fmt::print(stderr, "SQLite: {}\n", sqlite3_errmsg(database));
  std::abort();
}

Database open(const std::string& path) {
  sqlite3* database = nullptr;
  const int code = sqlite3_open(path.c_str(), &database);
  check(code == SQLITE_OK, database);
  return Database(database);
}

void run(sqlite3* database, const std::string& statements) {
  check(sqlite3_exec(database, statements.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK, database);
}

/// A statement that inserts rows of numbers; what is missing is NULL.
class Insert {
 public:
  Insert(sqlite3* database, const std::string& statement) : database_(database) {
    check(sqlite3_prepare_v2(database, statement.c_str(), -1, &statement_, nullptr) == SQLITE_OK, database);
  }
  Insert(Insert&&) = delete;
  ~Insert() { (void)sqlite3_finalize(statement_); }

  void operator()(std::initializer_list<std::optional<std::int64_t>> values, const std::string* text = nullptr) {
    (void)sqlite3_reset(statement_);
    int place = 0;
    for (const auto& value : values) {
      ++place;
      const int code = value ? sqlite3_bind_int64(statement_, place, *value) : sqlite3_bind_null(statement_, place);
      check(code == SQLITE_OK, database_);
    }
    if (text != nullptr) {
      const int code = sqlite3_bind_text(statement_, place + 1, text->c_str(), -1, SQLITE_TRANSIENT);
      check(code == SQLITE_OK, database_);
    }
    check(sqlite3_step(statement_) == SQLITE_DONE, database_);
  }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
};

/// Of a computer 1 in the first byte, as exports have it.
std::int64_t global_pid(std::int32_t process) {
  return (std::int64_t{1} << 56) | (std::int64_t{kNsightPid + process} << 24);
}

std::optional<std::int64_t> known(std::uint64_t number) {
  if (number == 0) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

/// A node of the graph.
std::optional<std::int64_t> node_of(const DeviceWork& work) {
  if (work.graph == 0) return std::nullopt;
  return static_cast<std::int64_t>((work.graph << 32) | 5);
}

/// The numbers of ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND for a name of torch.profiler's.
struct CopyKinds {
  std::int64_t kind, source, destination;
};
CopyKinds kinds_of(std::string_view name) {
  if (name == "Memcpy HtoD (Pinned -> Device)") return {1, 1, 2};
  if (name == "Memcpy DtoH (Device -> Pinned)") return {2, 2, 1};
  if (name == "Memcpy DtoD (Device -> Device)") return {8, 2, 2};
  fmt::print(stderr, "a copy of an unknown name: {}\n", name);
  std::abort();
}

class Writer {
 public:
  Writer(const Timeline& timeline, sqlite3* database) : timeline_(timeline), database_(database) {}

  void write() {
    run(database_, "BEGIN");
    run(database_, kSchema);
    devices();
    calls();
    work();
    ranges();
    strings();
    run(database_, "COMMIT");
  }

 private:
  std::int64_t id(const std::string& text) {
    return texts_.emplace(text, static_cast<std::int64_t>(texts_.size()) + 100).first->second;
  }

  void devices() {
    Insert gpu(database_, "INSERT INTO TARGET_INFO_GPU (vmId, id, name) VALUES (?, ?, ?)");
    const std::string other = "another GPU";
    gpu({1, 0}, &other);
    gpu({1, 3}, &timeline_.device_name);
    Insert device(database_, "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?, '', 132)");
    device({3, 0, kNsightPid});
    device({0, 1, kNsightPid});
  }

  void calls() {
    Insert insert(database_, "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)");
    for (const HostCall& call : timeline_.calls) {
      insert({call.time.begin, call.time.end, global_pid(call.process) | call.thread, known(call.correlation),
              id(timeline_.name(call.name) + "_v7000")});
    }
  }

  void work() {
    Insert kernel(database_,
                  "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, NULL, ?, ?, ?, ?, ?, NULL, ?, ?)");
    Insert copy(database_, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 1, NULL, ?, ?, ?, ?, ?, ?, ?, ?)");
    Insert memset(database_, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, ?, 1, NULL, ?, ?, ?, 0, ?, ?, 2)");
    for (const DeviceWork& one : timeline_.work) {
      const std::string& name = timeline_.name(one.name);
      const auto bytes = static_cast<std::int64_t>(one.bytes);
      if (one.kind == DeviceWork::Kind::kernel) {
        kernel({one.time.begin, one.time.end, one.device, one.stream, known(one.correlation), global_pid(one.process),
                id(name), id("short name"), node_of(one), known(one.graph)});
      } else if (one.kind == DeviceWork::Kind::copy) {
        const CopyKinds kinds = kinds_of(name);
        copy({one.time.begin, one.time.end, one.device, one.stream, known(one.correlation), global_pid(one.process),
              bytes, kinds.kind, kinds.source, kinds.destination, node_of(one)});
      } else {
        memset({one.time.begin, one.time.end, one.device, one.stream, known(one.correlation), global_pid(one.process),
                bytes, node_of(one)});
      }
    }
  }

  void ranges() {
    Insert insert(
        database_,
        "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, text) VALUES (?, ?, 59, ?, ?, ?)");
    bool registered = false;
    for (const HostRange& range : timeline_.ranges) {
      const std::string& name = timeline_.name(range.name);
      const std::int64_t thread = global_pid(range.process) | range.thread;
      if (registered) {
        run(database_, fmt::format("INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) VALUES "
                                   "({}, {}, 60, {}, {})",
                                   range.time.begin, range.time.end, thread, id(name)));
      } else {
        insert({range.time.begin, range.time.end, thread, std::nullopt}, &name);
      }
      registered = !registered;
    }
  }

  void strings() {
    Insert insert(database_, "INSERT INTO StringIds VALUES (?, ?)");
    for (const auto& text : texts_) insert({text.second}, &text.first);
  }

  const Timeline& timeline_;
  sqlite3* database_;
  std::unordered_map<std::string, std::int64_t> texts_;  // Their numbers in StringIds.
};

}  // namespace

void write_nsight_file(const Timeline& timeline, const std::string& path) {
  const Database database = open(path);
  Writer(timeline, database.get()).write();
}

void run_sql(const std::string& path, const std::string& statements) { run(open(path).get(), statements); }

}  // namespace pianola::profiling
