#pragma once
#include <Python.h>

namespace pianola::python {

/// Whether no program can tell two values apart: the same object; or numbers, texts and nested tuples, lists, dicts, sets,
/// arrays, partial functions and functions without state of their own that are equal in type and to the bit. 1, 1.0 and
/// True are three values, 0.0 and -0.0 two; a NaN is itself. Other objects are only what they are.
///
/// With the GIL. Never raises, and runs no code of the user's.
bool same_value(PyObject* one, PyObject* other) noexcept;

/// Whether a value of this type cannot change, and says all there is to know: a number, a text.
bool is_simple(PyObject* value) noexcept;

}  // namespace pianola::python
