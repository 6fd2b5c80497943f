#include <pianola/training/checkpoint_file.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/training/checkpoint.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace pianola::checkpoint_file_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

// A checkpoint as a file: what damages it, and what lies in its folder. No device is asked.
class CheckpointFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::path(::testing::TempDir()) / "checkpoint_file_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    checkpoint_.add("model", {{.name = "weight", .tensor = weight_}});
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::filesystem::path file() const { return folder_ / "step.pt"; }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  static void write(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // As an earlier version wrote it.
  static std::string without_seal(std::string bytes) {
    bytes.resize(bytes.size() - std::string("pianola:crc64:0123456789abcdef").size());
    bytes[bytes.size() - 2] = 0;
    return bytes;
  }

  std::filesystem::path folder_;
  at::Tensor weight_ = at::ones({4, 3}) * 0.5;
  Checkpoint checkpoint_;
};

TEST_F(CheckpointFile, EveryFlippedBitIsRefused) {
  checkpoint_.save(file());
  const std::string whole = read(file());
  const at::Tensor saved = weight_.clone();
  weight_.zero_();
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << bit));
      write(file(), bytes);
      try {
        checkpoint_.load(file());
        ++accepted;
      } catch (const UsageError& error) {
        const std::string text = error.what();
        if (text.find("step.pt") == std::string::npos || text.find("nothing was loaded") == std::string::npos) {
          ADD_FAILURE() << text;
        }
      }
    }
  }
  EXPECT_EQ(accepted, 0U) << "of " << whole.size() * 8;
  EXPECT_TRUE(same(weight_, at::zeros({4, 3})));
  write(file(), whole);
  checkpoint_.load(file());
  EXPECT_TRUE(same(weight_, saved));
}

TEST_F(CheckpointFile, EveryTruncationAndAppendedByteIsRefused) {
  checkpoint_.save(file());
  const std::string whole = read(file());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(file(), whole.substr(0, size));
    EXPECT_THROW(checkpoint_.load(file()), UsageError) << size;
  }
  write(file(), whole + '\n');
  EXPECT_THAT(
      refusal<UsageError>("a checkpoint with a byte too many", [&] { checkpoint_.load(file()); }),
      AllOf(HasSubstr("step.pt is no checkpoint, or only a part of one"), HasSubstr("load an earlier checkpoint")));
  std::string changed = whole;
  changed[whole.size() / 2] = static_cast<char>(changed[whole.size() / 2] ^ 1);
  write(file(), changed);
  EXPECT_THAT(refusal<UsageError>("a damaged checkpoint", [&] { checkpoint_.load(file()); }),
              AllOf(HasSubstr("step.pt is damaged: its checksum is that of other bytes"), HasSubstr("fix:")));
}

TEST_F(CheckpointFile, OneOfAnEarlierVersionIsLoadedWithAWarning) {
  struct Warnings final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } warnings;
  checkpoint_.save(file());
  write(file(), without_seal(read(file())));
  const at::Tensor saved = weight_.clone();
  weight_.zero_();
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    checkpoint_.load(file());
  }
  EXPECT_TRUE(same(weight_, saved));
  EXPECT_THAT(warnings.text, AllOf(HasSubstr("step.pt has no checksum"), HasSubstr("Save it again")));
}

TEST_F(CheckpointFile, LinksThatLieInTheFolderAreNotFollowed) {
  const std::filesystem::path foreign = folder_ / "foreign";
  write(foreign, "theirs");
  std::filesystem::create_symlink(foreign, file().string() + ".part");
  std::filesystem::create_symlink(foreign, file());
  checkpoint_.save(file());
  EXPECT_EQ(read(foreign), "theirs");
  EXPECT_FALSE(std::filesystem::is_symlink(file())) << "the link itself was replaced";
  checkpoint_.load(file());
  EXPECT_EQ(files(), 3U) << "nothing else is left";
}

TEST_F(CheckpointFile, ASaveThatFailsLeavesNothingAndSaysWhy) {
  std::filesystem::create_directories(file() / "taken");
  EXPECT_THAT(refusal<UsageError>("a checkpoint where a folder is", [&] { checkpoint_.save(file()); }),
              AllOf(HasSubstr("step.pt cannot be written: "), AnyOf(HasSubstr("directory"), HasSubstr("exists")),
                    HasSubstr("fix:")));
  EXPECT_EQ(files(), 1U);
  EXPECT_THAT(refusal<UsageError>("a checkpoint without a folder", [&] { checkpoint_.save(folder_ / "no" / "a.pt"); }),
              HasSubstr("a.pt cannot be written: No such file or directory"));
  {
    training::ReplacementFile replacement(folder_ / "b.pt");
    replacement.write("half", 4);
    EXPECT_EQ(files(), 2U);
  }
  EXPECT_EQ(files(), 1U) << "one that was not finished is gone";
}

TEST_F(CheckpointFile, HasTheModeOfAnyNewFile) {
  checkpoint_.save(file());
  write(folder_ / "other", "");
  struct stat own = {}, other = {};
  ASSERT_EQ(stat(file().c_str(), &own), 0);
  ASSERT_EQ(stat((folder_ / "other").c_str(), &other), 0);
  EXPECT_EQ(own.st_mode & 0777U, other.st_mode & 0777U);
}

// However the bytes arrive: one by one, or at once.
TEST_F(CheckpointFile, SealsWhatIsWrittenInPieces) {
  checkpoint_.save(file());
  const std::string archive = without_seal(read(file()));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{64}, archive.size()}) {
    const std::filesystem::path path = folder_ / "pieces";
    {
      training::ReplacementFile replacement(path);
      for (std::size_t at = 0; at < archive.size(); at += piece) {
        const std::string part = archive.substr(at, piece);
        replacement.write(part.data(), part.size());
      }
      replacement.seal();
      replacement.commit();
    }
    EXPECT_EQ(read(path), read(file())) << piece;
    std::ifstream stream(path, std::ios::binary);
    EXPECT_TRUE(training::check_whole(stream, path));
    EXPECT_EQ(stream.tellg(), 0);
  }
}

}  // namespace
}  // namespace pianola::checkpoint_file_test
