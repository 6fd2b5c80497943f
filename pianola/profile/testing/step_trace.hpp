#pragma once
#include <string>

namespace pianola::profiling {

/// A training step that launches a kernel, a copy, a memset and a graph of two nodes, as torch 2.11 writes it.
inline const std::string kStepTrace = R"json({
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150110011392, "computeMajor": 9},
    {"id": 1, "name": "another"}
  ],
  "cupti_version": 28, "with_stack": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1000,
  "traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "train", "pid": 42, "tid": 43, "ts": 100.000, "dur": 90.500,
   "args": {"External id": 1, "Record function id": 0, "Ev Idx": 0}},
  {"ph": "X", "cat": "python_function", "name": "train.py(3): step", "pid": 42, "tid": 43, "ts": 100.100, "dur": 90.000},
  {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_3", "pid": 42, "tid": 43, "ts": 101, "dur": 20,
   "args": {"Python parent id": null, "Python id": 1, "Python module id": 3}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 42, "tid": 43, "ts": 102.001, "dur": 8.999,
   "args": {"Input Dims": [[8, 4], [4]], "Input type": ["float", ""], "Concrete Inputs": ["", "{\"stream\": 99}"]}},
  {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: AddmmBackward0", "pid": 42, "tid": 44,
   "ts": 130.0, "dur": 5.0},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 42, "tid": 43, "ts": 103.5, "dur": 4.25,
   "args": {"External id": 5, "cbid": 211, "correlation": 7}},
  {"ph": "s", "id": 7, "pid": 42, "tid": 43, "ts": 103.5, "cat": "ac2g", "name": "ac2g"},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 42, "tid": 43, "ts": 108, "dur": 1,
   "args": {"cbid": 652, "correlation": 8}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 42, "tid": 43, "ts": 140, "dur": 9,
   "args": {"cbid": 311, "correlation": 9}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 42, "tid": 43, "ts": 150, "dur": 30,
   "args": {"cbid": 131, "correlation": 10}},
  {"ph": "X", "cat": "kernel", "name": "gemm<float>", "pid": 0, "tid": 7, "ts": 110.0, "dur": 3.008,
   "args": {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 7, "grid": [32, 1, 1],
            "blocks per SM": 0.25, "graph id": 0, "graph node id": 0}},
  {"ph": "f", "id": 7, "pid": 0, "tid": 7, "ts": 110.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 1, "tid": 20, "ts": 114, "dur": 2,
   "args": {"device": 1, "context": 1, "stream": 20, "correlation": 8, "bytes": 4096, "memory bandwidth (GB/s)": 2.04}},
  {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7, "ts": 117, "dur": 0.5,
   "args": {"device": 0, "context": 1, "stream": 7, "correlation": 0, "bytes": 16, "memory bandwidth (GB/s)": "N/A"}},
  {"ph": "X", "cat": "kernel", "name": "node 1", "pid": 0, "tid": 7, "ts": 145, "dur": 1,
   "args": {"device": 0, "stream": 7, "correlation": 9, "graph id": 3, "graph node id": 12884901889}},
  {"ph": "X", "cat": "kernel", "name": "node 2", "pid": 0, "tid": 7, "ts": 147, "dur": 1,
   "args": {"device": 0, "stream": 7, "correlation": 9, "graph node id": 12884901890}},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "train", "pid": 0, "tid": 7, "ts": 109, "dur": 40},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Synchronize", "pid": 0, "tid": 7, "ts": 150, "dur": 30},
  {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0, "ts": 1, "dur": 1},
  {"name": "process_name", "ph": "M", "ts": 0.000, "pid": 42, "tid": 0, "args": {"name": "python"}},
  {"ph": "X", "cat": "Trace", "ts": 99, "dur": 100, "pid": "Spans", "tid": "PyTorch Profiler", "name": "span"},
  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 200.000}
  ],
  "traceName": "step.json"
})json";

}  // namespace pianola::profiling
