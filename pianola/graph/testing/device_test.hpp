#pragma once
#include <pianola/graph/graph.hpp>
#include <pianola/trace/testing/device_test.hpp>
