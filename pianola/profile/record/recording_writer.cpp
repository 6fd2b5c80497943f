#include <pianola/profile/record/recording_writer.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace pianola::profiling {
namespace {

// Of the bound, what is kept for notes and the end mark.
constexpr std::uint64_t kReserve = 1024;

template <class Value>
std::string_view as_bytes(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Not within a character of UTF-8.
std::string_view cut(std::string_view text) {
  std::size_t size = std::min(text.size(), RecordingWriter::kMostNameBytes);
  while (size < text.size() && size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U) --size;
  return text.substr(0, size);
}

}  // namespace

RecordingWriter::Opening RecordingWriter::open(const std::string& path, const RecordingStart& start,
                                               std::uint64_t max_bytes) {
  // Not across exec: the program that follows in the same process makes a recording of its own.
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return {.writer = nullptr, .problem = fmt::format("cannot create '{}': {}", path, strerror(errno))};
  Opening opening;
  opening.writer.reset(new RecordingWriter(file, path, std::max(max_bytes, kSmallestRecording)));
  const FileHeader header{.process_id = start.process_id, .clock = start.clock, .wall = start.wall};
  if (opening.writer->append_to_file(as_bytes(header))) return opening;
  return {.writer = nullptr, .problem = opening.writer->problem()};
}

RecordingWriter::RecordingWriter(int file, std::string path, std::uint64_t max_bytes)
    : file_(file),
      path_(std::move(path)),
      max_bytes_(max_bytes),
      block_bytes_(std::min<std::uint64_t>(kBlockBytes, max_bytes / 16)) {}

RecordingWriter::~RecordingWriter() { ::close(file_); }

NameId RecordingWriter::name(std::string_view text) {
  text = cut(text);
  const auto known = ids_.find(text);
  if (known != ids_.end()) return known->second;
  if (names_.bytes.size() >= block_bytes_) write();
  if (ids_.size() >= kMostNames) text = "(one of too many names)";
  const auto [place, is_new] = ids_.try_emplace(std::string(text), static_cast<NameId>(ids_.size()));
  if (is_new) {
    append_text(names_.bytes, text);
    ++names_.records;
  }
  return place->second;
}

void RecordingWriter::add_device(std::int32_t number, std::string_view name) {
  Block block{.kind = BlockKind::devices};
  append_signed(block.bytes, number);
  append_text(block.bytes, name);
  block.records = 1;
  if (taking_) write_block(block);
}

void RecordingWriter::add_dropped(std::uint64_t records) {
  Block block{.kind = BlockKind::dropped};
  append_number(block.bytes, records);
  block.records = 1;
  if (taking_) write_block(block);
}

void RecordingWriter::add_note(std::string_view sentence) {
  Block block{.kind = BlockKind::note};
  append_text(block.bytes, sentence);
  block.records = 1;
  if (taking_) write_block(block);
}

void RecordingWriter::write() {
  for (Block* block : {&names_, &work_, &calls_, &ranges_}) {
    if (taking_ && block->records > 0) write_block(*block);
    *block = {.kind = block->kind};
  }
}

void RecordingWriter::finish() {
  write();
  taking_ = false;
  if (finished_ || !problem_.empty()) return;
  finished_ = true;
  append_to_file(as_bytes(BlockHeader{.kind = BlockKind::end}));
}

void RecordingWriter::write_block(Block& block) {
  std::string bytes;
  bytes.reserve(sizeof(BlockHeader) + block.bytes.size());
  bytes += as_bytes(BlockHeader{
      .kind = block.kind, .bytes = static_cast<std::uint32_t>(block.bytes.size()), .records = block.records});
  bytes += block.bytes;
  if (written_ + bytes.size() + kReserve > max_bytes_) {
    stop_because_full();
  } else {
    append_to_file(bytes);
  }
}

void RecordingWriter::stop_because_full() {
  taking_ = false;
  std::string text;
  append_text(text, fmt::format("the recording reached its limit of {:.3g} MB: what came later is missing",
                                static_cast<double>(max_bytes_) / 1e6));
  const BlockHeader header{.kind = BlockKind::note, .bytes = static_cast<std::uint32_t>(text.size()), .records = 1};
  append_to_file(std::string(as_bytes(header)) + text);
}

bool RecordingWriter::append_to_file(std::string_view bytes) {
  const std::size_t size = bytes.size();
  while (!bytes.empty()) {
    const ssize_t done = ::write(file_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      problem_ = fmt::format("cannot write '{}': {}", path_, strerror(errno));
      taking_ = false;
      // Away with a part of a block; should that fail too, a reader leaves it out.
      [[maybe_unused]] const int cut = ::ftruncate(file_, static_cast<off_t>(written_));
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  written_ += size;
  return true;
}

}  // namespace pianola::profiling
