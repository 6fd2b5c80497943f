#include <pianola/callable/module_view.hpp>

namespace pianola {

ModuleView::~ModuleView() = default;

}  // namespace pianola
