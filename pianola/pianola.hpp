#pragma once

#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>
#include <pianola/core/version.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/trace/op_trace.hpp>
