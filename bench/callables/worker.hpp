#pragma once
#include <iosfwd>

namespace pianola::bench {

/// Does what bench/callables/compare.py asks, one JSON object per line and answer, until `requests` ends:
///
///     {"do": "describe"}                                    -> the machine
///     {"do": "prepare", "case": NAME, "device": "cuda",
///      "kind": "callable", "model": "sum", "parameters": 8} -> {"check": [numbers]}
///     {"do": "prepare", ..., "kind": "training", "model": "mlp"}
///     {"do": "measure", "case": NAME, "contender": "whole",
///      "iterations": 20, "burst": 10}                       -> {"host": us, "wall": us}, per iteration
///     {"do": "release"}                                     -> {}, and every case is gone
///
/// What fails is answered by {"error": TEXT}.
void serve(std::istream& requests, std::ostream& answers);

}  // namespace pianola::bench
