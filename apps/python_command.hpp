#pragma once

namespace pianola::program {

/// Whether the command line is about a function of a Python file: `audit train.py:step`, `verify train.py:make_step`.
bool is_for_python(int argc, char** argv);

/// Becomes `python -m pianola` with the same arguments: of the interpreter that PIANOLA_PYTHON names, or that the build
/// tree was made with, else of `python3`.
/// @return  The exit code, where that cannot be started.
int run_in_python(int argc, char** argv);

}  // namespace pianola::program
