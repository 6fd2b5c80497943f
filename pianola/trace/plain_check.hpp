#pragma once
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/python_stub.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pianola::trace {

// Note [What is plain]
// A graph holds what operations compute on tensors that lie in memory, one operator after the other. What stands between
// the caller and the operators is no part of it: modes and subclasses that run Python for each operation, transforms of
// torch.func around the call, tangents of forward-mode AD. Nor is what runs beside the operators: kernels that torch.compile made, and
// work with other processes; but see Note [Communication]. A call that meets such a thing is no call that a graph stands for, and a step that
// does is no step to capture. All of that is looked for here and nowhere else: at the entries (oddity_of_modes(),
// oddity_of_input()), and by OpStream at each operation of a step (oddity_in_step()), which also keeps such operations
// from the observers: a tensor without sizes, or whose sizes are a call of Python, is not for them to look at.

/// What is not plain; `none`: nothing.
enum class Oddity : std::uint8_t {
  none,
  // Of the calling thread:
  dispatch_mode,  ///< A TorchDispatchMode is active.
  transform,      ///< A transform of torch.func is open.
  jit_trace,      ///< torch.jit.trace is on.
  function_mode,  ///< A TorchFunctionMode that is not torch's own default device.
  // Of a tensor:
  subclass,           ///< Runs Python for each operation (__torch_dispatch__).
  function_subclass,  ///< Has a __torch_function__ of its own.
  wrapped,            ///< Belongs to a transform of torch.func.
  tangent,            ///< Carries a tangent of forward-mode AD.
  named,
  nested,
  sparse,
  opaque,
  quantized,
  meta,
  zero,  ///< Stands for zeros without memory.
  // Of what the step calls:
  compiled,       ///< Code that torch.compile made, and whose kernels nobody sees. See Note [Compiled code].
  compiling,      ///< torch.compile makes code while the step runs: what it traces is no part of the step.
  communication,  ///< A collective of torch.distributed. The graph of a whole step repeats it; see may_be_in_a_step().
  data_parallel,  ///< DistributedDataParallel, as above.
  odd_leaf,  ///< A parameter that is made of tensors, as above. See Note [Tensors whose operators are Python] in made_of_tensors.hpp.
  collective,  ///< Other work with other ranks.
  late_rank,   ///< A collective whose end did not come, since another rank has not called it yet.
  sharded,     ///< FSDP.
  resized,     ///< A storage whose size the step changes.
};

/// The modes of this thread that an operation would meet; Oddity::none where there are none. A read of one thread-local.
[[nodiscard]] Oddity oddity_of_modes() noexcept;

/// Whether a graph can take the tensor as an input, by its keys, layout and class. Calls nothing of the tensor's own.
[[nodiscard]] Oddity oddity_of_input(const at::Tensor& tensor) noexcept;

/// Whether operations on the tensor are what they seem. Sparse and opaque tensors are: the tape has its own word on them.
[[nodiscard]] Oddity oddity_in_step(const at::Tensor& tensor) noexcept;

/// Whether a call that is made now belongs to a level of a transform of torch.func, and leads to calls of operators below all
/// levels, which are seen in its place. See Note [Transforms of torch.func].
[[nodiscard]] bool is_of_a_transform();
/// Whether the tensor is a wrapper of a level that is over: a call that is given it is made anew with what it wrapped.
[[nodiscard]] bool is_left_by_a_transform(const at::Tensor& tensor);

// Note [Communication]
// A collective of torch.distributed is an operator that takes tensors and a group. Each rank calls the same ones in the same
// order, and the graph of a whole step repeats them in that order: a rank that replays does for the others what it does
// eagerly. A graph of a part does not: what communicates for a module (hooks on gradients, buckets) begins in its forward and
// ends in its backward, outside of the graphs.

/// Whether the graph of a whole step may hold it, though other graphs may not.
[[nodiscard]] bool may_be_in_a_step(Oddity oddity) noexcept;

// Note [Compiled code]
// Inductor's kernels are called past the dispatcher. The Python package calls them by operators of its own while operations are
// watched (_compiled_code.py): PythonLook::see_compiled_code puts them there, when dynamo looks for such code. Without the package, a
// process that runs such code runs what nobody sees.

/// Whether operations that meet it are kept from observers, who then do not know what they read and write.
[[nodiscard]] bool hides_operations(Oddity oddity) noexcept;

/// The same of the operator, by its name ("c10d::allreduce_"); of a span that is none ("TorchDynamo Cache Lookup"); of a
/// user's scope ("DistributedDataParallel.forward"); of a backward node ("CompiledFunctionBackward").
[[nodiscard]] Oddity oddity_of_operator(std::string_view name) noexcept;
/// Whether it is one that calls collectives and plain operators for all it does ("_c10d_functional::all_reduce").
[[nodiscard]] bool is_made_of_collectives(std::string_view name) noexcept;
[[nodiscard]] Oddity oddity_of_span(std::string_view name) noexcept;
[[nodiscard]] Oddity oddity_of_scope(std::string_view name) noexcept;

/// What the TorchFunctionModes of this thread make of a call.
struct FunctionModes {
  bool users = false;                         ///< One that is not torch's default device.
  std::optional<c10::Device> default_device;  ///< Of torch.set_default_device() or `with torch.device(...)`.
  friend bool operator==(const FunctionModes&, const FunctionModes&) = default;
};
[[nodiscard]] FunctionModes function_modes();
/// Whether code that torch.compile made, and that runs next, is seen as operations; and whether it makes code on this thread. See
/// Note [Compiled code].
[[nodiscard]] bool compiled_code_is_seen() noexcept;
[[nodiscard]] bool is_compiling() noexcept;

/// "under a TorchDispatchMode (FlopCounterMode)", of the modes that are active now.
[[nodiscard]] std::string modes_in_words(Oddity oddity);
/// "a DTensor, which runs Python for each operation"
[[nodiscard]] std::string in_words(Oddity oddity, const at::Tensor& tensor);
/// What to do about it, and the rule that it is a case of.
[[nodiscard]] std::string remedy_of(Oddity oddity);
[[nodiscard]] std::string rule_of(Oddity oddity);

/// Of a call under such modes: "replay() was called under a TorchDispatchMode (FlopCounterMode), which a graph does not
/// obey". `consequence`: "nothing was launched".
[[nodiscard]] Diagnosis refuse_modes(Oddity oddity, std::string_view call, std::string_view consequence = "");
/// Of an input: "input 0 is a nested tensor, which ...".
[[nodiscard]] Diagnosis refuse_input(Oddity oddity, std::string_view name, const at::Tensor& tensor);

/// What only Python knows. Each is called while the objects live, and takes Python's lock where it needs it.
struct PythonLook {
  bool (*overrides_functions)(const at::Tensor& tensor) noexcept;  ///< Its class has a __torch_function__ of its own.
  std::string (*class_of)(const at::Tensor& tensor);               ///< "DTensor"; "" where Python has not seen it.
  std::string (*class_of_mode)(PyObject* mode);
  FunctionModes (*function_modes)();
  /// Makes sure that code which torch.compile made is seen as operations from now on. See Note [Compiled code].
  bool (*see_compiled_code)() noexcept;
  bool (*is_compiling)() noexcept;  ///< torch.compile makes code on this thread. See Note [Compiled code].
};
/// For the Python package, at import.
PIANOLA_API void set_python_look(const PythonLook& look) noexcept;

}  // namespace pianola::trace
