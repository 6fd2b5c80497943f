#pragma once

namespace pianola::python {

/// Tells the library what only Python knows of tensors and modes. At import.
void set_python_look();

}  // namespace pianola::python
