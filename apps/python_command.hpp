#pragma once

namespace pianola::program {

/// Whether the command line is about a function of a Python file or module: `audit train.py:step`, `profile train:step`.
bool is_for_python(int argc, char** argv);

/// Becomes `python -m pianola` with the same arguments: of the interpreter that PIANOLA_PYTHON names, or that the build
/// tree was made with, else of `python3`.
/// @return  The exit code, where that cannot be started.
int run_in_python(int argc, char** argv);

/// Whether it is about a profile that Nsight Systems exported: `decide report.sqlite`.
bool is_about_export(int argc, char** argv);

/// Becomes python/pianola/_nsight.py of that interpreter, which starts this program again with a trace of each export.
/// @return  The exit code, where that cannot be started.
int read_exports_in_python(int argc, char** argv);

}  // namespace pianola::program
