#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/profile.hpp>

#include <cstddef>
#include <filesystem>
#include <string>

namespace CLI {
class App;
}

namespace pianola::program {

/// What `pianola profile`, `decide` and `compare` are told alike.
struct ProfileArguments {
  AnalysisOptions analysis;
  std::string json;  ///< File for the report, "-" for the terminal; empty: none.
};

/// What is made of a profile besides the report.
struct ProfileOutputs {
  std::filesystem::path html;   ///< Empty: none.
  std::filesystem::path trace;  ///< For Perfetto; empty: none.
  std::size_t regions = 12;
};

void add_profile_options(CLI::App& command, ProfileArguments& arguments);
void add_profile_outputs(CLI::App& command, ProfileOutputs& outputs);

/// Prints the report, and writes what was asked for.
/// @throws UsageError  A file cannot be written.
void report_profile(const Profile& profile, const ProfileArguments& arguments, const ProfileOutputs& outputs);

}  // namespace pianola::program
