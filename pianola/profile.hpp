#pragma once

#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/comparison.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/profile.hpp>
#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/read/read_profile.hpp>
#include <pianola/profile/read/recording.hpp>
#include <pianola/profile/record/child.hpp>
#include <pianola/profile/show/chrome_writer.hpp>
#include <pianola/profile/show/html_report.hpp>
#include <pianola/profile/show/profile_report.hpp>
#include <pianola/profile/timeline.hpp>
