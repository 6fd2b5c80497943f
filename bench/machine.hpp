#pragma once
#include <string>
#include <utility>
#include <vector>

namespace pianola::bench {

/// What figures depend on besides the code: processor, device, driver, versions, threads. Name and value, in order.
using Machine = std::vector<std::pair<std::string, std::string>>;

Machine describe_machine();

}  // namespace pianola::bench
