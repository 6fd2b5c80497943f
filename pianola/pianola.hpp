#pragma once

#include <pianola/callable/callable.hpp>
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/options.hpp>
#include <pianola/core/buffer_plan.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>
#include <pianola/core/schedule.hpp>
#include <pianola/core/schedule_drawing.hpp>
#include <pianola/core/version.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/trace/op_trace.hpp>
