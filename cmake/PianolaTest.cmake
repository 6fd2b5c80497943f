# Every test leaves its counts as JUnit XML in one folder, from which tools/summary.py adds them up.
set(PIANOLA_TEST_RESULTS ${PROJECT_BINARY_DIR}/test-results)
if(PIANOLA_TESTS)
  enable_testing()
endif()

# pianola_takes_turns(<test> ...): these tests use the GPU where there is one, and then one at a time: some cases measure its
# free memory.
function(pianola_takes_turns)
  if(EXISTS /dev/nvidiactl)
    set_tests_properties(${ARGN} PROPERTIES RESOURCE_LOCK device)
  endif()
endfunction()

# pianola_takes_long(<test> ...): these tests take more than 20 s on two idle cores: `make test-long` runs them, `make test` does not.
function(pianola_takes_long)
  set_property(TEST ${ARGN} APPEND PROPERTY LABELS long)
endfunction()

# pianola_gtest(<name> <target>): registers a GoogleTest executable as one test. One process for all of its cases,
# since loading libtorch_cuda takes more than a second.
function(pianola_gtest name target)
  add_test(NAME ${name} COMMAND ${target} --gtest_brief=1 --gtest_output=xml:${PIANOLA_TEST_RESULTS}/${name}.xml)
  set_tests_properties(${name} PROPERTIES LABELS "gtest;device" TIMEOUT 900)
  pianola_takes_turns(${name})
endfunction()

# pianola_pytest(<name> <file or folder> ...): registers Python tests as one test.
function(pianola_pytest name)
  add_test(
    NAME ${name}
    COMMAND ${PIANOLA_PYTHON} -m pytest -q -p no:cacheprovider --junitxml=${PIANOLA_TEST_RESULTS}/${name}.xml ${ARGN}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    LABELS pytest
    TIMEOUT 3600  # on two slow cores
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;PIANOLA_BUILD_DIR=${PROJECT_BINARY_DIR}")
endfunction()
