# Finds the libtorch inside a Python installation, and the CUDA runtime that belongs to it, without torch's own package
# files, which want a CUDA toolkit with nvcc.
#
# Reads   PIANOLA_PYTHON  interpreter that can import torch
#         PIANOLA_CUDA    OFF: leave CUDA out even if torch has it
# Makes   libtorch::torch   tensors, operators, autograd (torch_cpu, c10)
#         libtorch::api     the above and the C++ frontend, torch/torch.h: slow to compile, for examples and tests
#         libtorch::python  libtorch::api and what an extension module shares with torch's own; no Python headers
#         libtorch::cudart  CUDA headers and runtime, without torch     } only if torch has CUDA
#         libtorch::cuda    torch's CUDA half, with libtorch::cudart    }
# Sets    Libtorch_FOUND, Libtorch_VERSION, Libtorch_CUDA_VERSION (empty: none), Libtorch_ROOT
#         Libtorch_LIBRARY_DIRS   what a run path needs

include(FindPackageHandleStandardArgs)

# Asks the interpreter; one line per answer so that paths may hold any character.
function(_libtorch_ask)
  execute_process(
    COMMAND ${PIANOLA_PYTHON} -c [[
import os, torch
print(os.path.dirname(torch.__file__))
print(torch.__version__.split("+")[0])
print(torch.version.cuda or "")
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))
]]
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE answer
    ERROR_VARIABLE trouble)
  if(failed)
    string(STRIP "${trouble}" trouble)
    string(REGEX REPLACE ".*\n" "" trouble "${trouble}")
    set(Libtorch_REASON "'${PIANOLA_PYTHON}' cannot import torch (${failed} ${trouble}): pass -DPIANOLA_PYTHON=<an \
interpreter that can>" PARENT_SCOPE)
    return()
  endif()
  string(REGEX REPLACE "\n$" "" answer "${answer}")
  string(REPLACE "\n" ";" answer "${answer}")
  list(GET answer 0 root)
  list(GET answer 1 version)
  list(GET answer 2 cuda)
  list(GET answer 3 abi)
  set(Libtorch_ROOT "${root}" PARENT_SCOPE)
  set(Libtorch_VERSION "${version}" PARENT_SCOPE)
  set(Libtorch_CUDA_VERSION "${cuda}" PARENT_SCOPE)
  set(Libtorch_CXX11_ABI "${abi}" PARENT_SCOPE)
endfunction()

function(_libtorch_shared name file)
  if(NOT TARGET libtorch::${name})
    add_library(libtorch::${name} SHARED IMPORTED)
    set_target_properties(libtorch::${name} PROPERTIES IMPORTED_LOCATION "${file}")
  endif()
endfunction()

function(_libtorch_interface name)
  if(NOT TARGET libtorch::${name})
    add_library(libtorch::${name} INTERFACE IMPORTED)
  endif()
endfunction()

function(_libtorch_add_cpu)
  _libtorch_shared(c10 "${Libtorch_ROOT}/lib/libc10.so")
  _libtorch_shared(torch_cpu "${Libtorch_ROOT}/lib/libtorch_cpu.so")
  _libtorch_interface(torch)
  # Not libtorch.so: in a CUDA build it loads the CUDA libraries into every program.
  set_target_properties(libtorch::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_ROOT}/include"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${Libtorch_CXX11_ABI}"
    INTERFACE_LINK_LIBRARIES "libtorch::torch_cpu;libtorch::c10")
  _libtorch_interface(api)
  set_target_properties(libtorch::api PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_ROOT}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES libtorch::torch)
  _libtorch_shared(torch_python "${Libtorch_ROOT}/lib/libtorch_python.so")
  _libtorch_interface(python)
  set_target_properties(libtorch::python PROPERTIES INTERFACE_LINK_LIBRARIES "libtorch::torch_python;libtorch::api")
endfunction()

# Looks in the wheels that torch depends on, then in a toolkit.
function(_libtorch_find_cuda)
  cmake_path(GET Libtorch_ROOT PARENT_PATH site)
  file(GLOB wheels "${site}/nvidia/cu[0-9]*" "${site}/nvidia/cuda_runtime")
  set(roots ${wheels} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  set(headers "")
  set(runtime "")
  foreach(root IN LISTS roots)
    if(NOT headers AND EXISTS "${root}/include/cuda_runtime_api.h")
      set(headers "${root}/include")
    endif()
    file(GLOB libraries "${root}/lib/libcudart.so*" "${root}/lib64/libcudart.so*")
    if(NOT runtime AND libraries)
      list(GET libraries 0 runtime)
    endif()
  endforeach()
  # Older wheels spread the headers over one folder per library.
  file(GLOB more "${site}/nvidia/*/include")
  # cuda_runtime_api.h includes crt/..., cublas_v2.h includes nv/...: wheels of their own (nvidia-cuda-crt and
  # nvidia-cuda-cccl) that torch does not ask for.
  set(crt_roots ${headers} ${more})
  foreach(root IN LISTS roots)
    list(APPEND crt_roots "${root}/include")
  endforeach()
  list(APPEND crt_roots "${site}/triton/backends/nvidia/include")
  set(crt "")
  set(nv "")
  foreach(root IN LISTS crt_roots)
    if(NOT crt AND EXISTS "${root}/crt/host_config.h")
      set(crt "${root}")
    endif()
    foreach(folder IN ITEMS "${root}" "${root}/cccl")
      if(NOT nv AND EXISTS "${folder}/nv/target")
        set(nv "${folder}")
      endif()
    endforeach()
  endforeach()
  list(APPEND more ${crt} ${nv})
  list(REMOVE_ITEM more "${headers}")
  list(REMOVE_DUPLICATES more)
  set(Libtorch_CUDA_INCLUDES ${headers} ${more} PARENT_SCOPE)
  set(Libtorch_CUDART "${runtime}" PARENT_SCOPE)
  if(NOT headers OR NOT runtime OR NOT crt OR NOT nv)
    set(Libtorch_REASON "torch has CUDA ${Libtorch_CUDA_VERSION}, but there are no CUDA headers or no libcudart beside \
it: install the wheels nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl, set CUDA_HOME to a toolkit, or pass -DPIANOLA_CUDA=OFF" PARENT_SCOPE)
  endif()
endfunction()

function(_libtorch_add_cuda)
  _libtorch_shared(runtime "${Libtorch_CUDART}")
  _libtorch_interface(cudart)
  set_target_properties(libtorch::cudart PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_CUDA_INCLUDES}"
    INTERFACE_LINK_LIBRARIES "libtorch::runtime;${CMAKE_DL_LIBS}")
  _libtorch_shared(c10_cuda "${Libtorch_ROOT}/lib/libc10_cuda.so")
  _libtorch_shared(torch_cuda "${Libtorch_ROOT}/lib/libtorch_cuda.so")
  _libtorch_interface(cuda)
  set_target_properties(libtorch::cuda PROPERTIES
    INTERFACE_LINK_LIBRARIES "libtorch::torch;libtorch::torch_cuda;libtorch::c10_cuda;libtorch::cudart"
    # libtorch_cuda registers its kernels when it is loaded: keep it where nothing refers to it by name.
    INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed")
endfunction()

_libtorch_ask()
if(Libtorch_ROOT)
  # Another torch in the same place: ask again.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${Libtorch_ROOT}/version.py")
  _libtorch_add_cpu()
  if(Libtorch_CUDA_VERSION AND NOT PIANOLA_CUDA STREQUAL "OFF")
    _libtorch_find_cuda()
    if(Libtorch_CUDART)
      _libtorch_add_cuda()
    endif()
  endif()
endif()
set(Libtorch_LIBRARY_DIRS "${Libtorch_ROOT}/lib")
if(Libtorch_CUDART)
  cmake_path(GET Libtorch_CUDART PARENT_PATH cudart_dir)
  list(APPEND Libtorch_LIBRARY_DIRS "${cudart_dir}")
endif()
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_ROOT
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "${Libtorch_REASON}")
