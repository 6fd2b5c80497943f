#include <pianola/core/error.hpp>
#include <pianola/training/static_inputs.hpp>
#include <pianola/training/testing/static_inputs_fixture.hpp>

#include <functional>
#include <string>
#include <vector>

namespace pianola::static_inputs_refusal_test {
namespace {

using c10::IValue;
using ::testing::HasSubstr;
using testing::refusal;

class StaticInputsRefusal : public testing::StaticInputsFixture {
 protected:
  static IValue microbatch(const Entries& changed = {}) {
    Entries entries = {{"tokens", numbers({4, 7}, 1)},
                       {"mask", list({floats({4}, 2), IValue()})},
                       {"scale", 2.5},
                       {"mode", "fast"},
                       {"pair", tuple({floats({2}, 3), 3})}};
    for (const auto& [key, value] : changed) {
      for (auto& entry : entries) {
        if (entry.first == key) entry.second = value;
      }
    }
    return dict(entries);
  }
};
PIANOLA_ON_EVERY_DEVICE(StaticInputsRefusal);

TEST_P(StaticInputsRefusal, NamesWhatDiffersFromTheFirstBatch) {
  const auto without = [](const std::string& key) {
    auto value = microbatch().toGenericDict();
    (void)value.erase(key);
    return IValue(value);
  };
  const auto with = [](const std::string& key, const IValue& added) {
    auto value = microbatch().toGenericDict();
    value.insert(key, added);
    return IValue(value);
  };
  struct Case {
    const char* title;
    IValue given;
    const char* message;
    const char* fix;
  };
  const std::vector<Case> cases = {
      {"another shape", microbatch({{"tokens", numbers({4, 6}, 1)}}),
       "microbatch 1['tokens']: expected Long [4, 7], got Long [4, 6]", "StaticInputsOptions::buckets"},
      {"another number of dimensions", microbatch({{"tokens", numbers({28}, 1)}}),
       "microbatch 1['tokens']: expected Long [4, 7], got Long [28]", "StaticInputs of their own"},
      {"another dtype", microbatch({{"tokens", floats({4, 7}, 1)}}),
       "microbatch 1['tokens']: expected Long [4, 7], got Float [4, 7]", "convert it before it is loaded"},
      {"a missing key", without("mask"), "microbatch 1 lacks the key 'mask'", "the structure of the first one"},
      {"an extra key", with("extra", floats({1}, 1)),
       "microbatch 1 has the key 'extra', which the first batch did not have", "the structure of the first one"},
      {"a None that became a tensor", microbatch({{"mask", list({floats({4}, 2), floats({4}, 2)})}}),
       "microbatch 1['mask'][1]: expected None, got a tensor", "or None in every batch"},
      {"a tensor that became None", microbatch({{"mask", list({IValue(), IValue()})}}),
       "microbatch 1['mask'][0]: expected a tensor, got None", "or None in every batch"},
      {"a number that changed", microbatch({{"scale", 3.5}}), "microbatch 1['scale']: expected 2.5, got 3.5",
       "pass what changes as a tensor"},
      {"a string that changed", microbatch({{"mode", "slow"}}), "microbatch 1['mode']: expected 'fast', got 'slow'",
       "pass what changes as a tensor"},
      {"a number inside", microbatch({{"pair", tuple({floats({2}, 3), 4})}}),
       "microbatch 1['pair'][1]: expected 3, got 4", "pass what changes as a tensor"},
      {"a number in place of a tensor", microbatch({{"tokens", 7}}), "microbatch 1['tokens']: expected a tensor, got 7",
       "the structure of the first one"},
      {"a longer list", microbatch({{"mask", list({floats({4}, 2), IValue(), IValue()})}}),
       "microbatch 1['mask']: expected a list of 2, got a list of 3", "the structure of the first one"},
      {"a tuple in place of a list", microbatch({{"mask", tuple({floats({4}, 2), IValue()})}}),
       "microbatch 1['mask']: expected a list of 2, got a tuple of 2", "the structure of the first one"},
      {"a tensor in place of a dict", floats({4}, 2), "microbatch 1: expected a dict of 5, got a tensor",
       "the structure of the first one"},
  };
  StaticInputs inputs(device());
  inputs.load({microbatch(), microbatch()});
  std::vector<at::Tensor> before;
  for (const at::Tensor& tensor : inputs.tensors()) before.push_back(tensor.clone());
  const IValue other = microbatch({{"tokens", numbers({4, 7}, 9)}});
  for (const Case& tested : cases) {
    const auto load = [&] { inputs.load({other, tested.given}); };
    EXPECT_THAT(refusal<UsageError>(tested.title, load),
                ::testing::AllOf(HasSubstr(tested.message), HasSubstr("fix:"), HasSubstr(tested.fix)));
    expect_values(inputs.tensors(), before, std::string("after ") + tested.title);
  }
  inputs.load({other, other});
  EXPECT_TRUE(testing::same(inputs.tensors()[0].cpu(), numbers({4, 7}, 9))) << "none of them was left on its way";
}

TEST_P(StaticInputsRefusal, AnotherNumberOfMicrobatches) {
  StaticInputs inputs(device());
  inputs.load({floats({2}, 1), floats({2}, 2)});
  EXPECT_THAT(refusal<UsageError>("fewer microbatches", [&] { inputs.load({floats({2}, 1)}); }),
              HasSubstr("the batch has 1 microbatches, the first one had 2"));
}

TEST_P(StaticInputsRefusal, ABatchWithoutMicrobatches) {
  StaticInputs inputs(device());
  EXPECT_THAT(refusal<UsageError>("no microbatch", [&] { inputs.load({}); }), HasSubstr("the batch has no microbatch"));
}

TEST_P(StaticInputsRefusal, TensorsWithoutPlainMemory) {
  StaticInputs inputs(device());
  const auto load = [&] { inputs.load({dict({{"x", floats({2, 2}, 1).to_sparse()}})}); };
  EXPECT_THAT(refusal<UsageError>("a sparse tensor", load),
              HasSubstr("microbatch 0['x'] is a sparse, quantized or meta tensor"));
  inputs.load({dict({{"x", floats({2, 2}, 1)}})});
  EXPECT_THAT(refusal<UsageError>("a sparse tensor later", load), HasSubstr("microbatch 0['x'] is a sparse"));
}

TEST_P(StaticInputsRefusal, CallsInTheWrongOrder) {
  StaticInputs inputs(device());
  EXPECT_THAT(refusal<UsageError>("microbatches without a batch", [&] { (void)inputs.microbatches(); }),
              HasSubstr("StaticInputs hold no batch yet"));
  EXPECT_THAT(refusal<UsageError>("advance without prefetch", [&] { inputs.advance(); }),
              HasSubstr("no batch was prefetched"));
  inputs.prefetch({floats({2}, 1)});
  EXPECT_THAT(refusal<UsageError>("a prefetch before advance", [&] { inputs.prefetch({floats({2}, 2)}); }),
              HasSubstr("a prefetched batch waits already"));
  EXPECT_THAT(refusal<UsageError>("tensors before advance", [&] { (void)inputs.tensors(); }),
              HasSubstr("StaticInputs hold no batch yet"));
  inputs.advance();
  expect_values(inputs.tensors(), {floats({2}, 1)});
  EXPECT_THAT(refusal<UsageError>("a second advance", [&] { inputs.advance(); }), HasSubstr("no batch was prefetched"));
}

TEST_P(StaticInputsRefusal, CallsInsideACapture) {
  StaticInputs inputs(device());
  inputs.load({floats({2}, 1)});
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"prefetch", [&] { inputs.prefetch({floats({2}, 1)}); }},
      {"advance", [&] { inputs.advance(); }},
      {"for_each_bucket", [&] { inputs.for_each_bucket([](std::int64_t) {}); }}};
  for (const auto& [name, call] : calls) {
    Graph graph(device());
    const auto capture = [&graph, &call = call] { graph.capture(call, {.warmup = 0}); };
    EXPECT_THAT(refusal<UsageError>(std::string(name) + " in a capture", capture),
                HasSubstr(std::string(name) + "() of StaticInputs was called inside a capture"));
  }
}

TEST_P(StaticInputsRefusal, AFirstBatchThatFailsFixesNothing) {
  StaticInputs inputs(device(), {.buckets = {.sizes = {4}}});
  EXPECT_THAT(refusal<UsageError>("a first batch that is too long",
                                  [&] {
                                    inputs.load({numbers({2, 5}, 1)});
                                  }),
              HasSubstr("no bucket holds a length of 5; the buckets are 4"));
  inputs.load({dict({{"x", numbers({2, 3}, 1)}})});
  EXPECT_EQ(inputs.bucket(), 4);
}

}  // namespace
}  // namespace pianola::static_inputs_refusal_test
