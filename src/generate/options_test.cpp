#include "generate/options.hpp"

#include <catch_amalgamated.hpp>
#include <limits>
#include <utility>

#include "core/error.hpp"

namespace wf::generate {

namespace {

using Values = std::vector<std::pair<std::string, Config::Value>>;
using List = std::vector<double>;

Options parsed(const Values& values, size_t vocab_size = 10) {
  Config config("generate");
  for (const auto& [key, value] : values) config.set(key, value);
  return parse_options(config, vocab_size);
}

std::pair<Code, std::string> error_of(const Values& values) {
  try {
    parsed(values);
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  return {Code::kInternal, "no error"};
}

}  // namespace

TEST_CASE("options: defaults are Hugging Face's") {
  const Options o = parsed({});
  CHECK(!o.sample);
  CHECK(!o.max_new_tokens);
  CHECK(o.return_sequences == 1);
  CHECK(o.temperature == 1);
  CHECK(o.repetition_penalty == 1);
  CHECK(o.eos.empty());
}

TEST_CASE("options: a sampling option turns sampling on, and contradicts doSample false") {
  for (const char* name : {"temperature", "topP", "minP", "typicalP", "topH"}) {
    CHECK(parsed({{name, 0.5}}).sample);
    CHECK(error_of({{name, 0.5}, {"doSample", false}}).first == Code::kInvalidArgument);
  }
  CHECK(parsed({{"topK", 3.0}}).sample);
  CHECK(!parsed({{"seed", 3.0}}).sample);
  CHECK(error_of({{"topP", 0.5}, {"doSample", false}}).second ==
        "[generate] topP: expected doSample true, got false: the option only matters when sampling");
}

TEST_CASE("options: values out of range name the option, what is expected and what was found") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const Values bad = {{"temperature", 0.0},
                      {"temperature", nan},
                      {"temperature", infinity},
                      {"topP", 1.5},
                      {"topP", nan},
                      {"topP", -0.1},
                      {"topK", -1.0},
                      {"topK", 1.5},
                      {"topK", nan},
                      {"minP", 2.0},
                      {"typicalP", 0.0},
                      {"epsilonCutoff", 1.0},
                      {"etaCutoff", -0.5},
                      {"topH", 0.0},
                      {"repetitionPenalty", 0.0},
                      {"repetitionPenalty", nan},
                      {"noRepeatNgramSize", -1.0},
                      {"maxNewTokens", 0.0},
                      {"maxLength", 0.0},
                      {"minLength", -1.0},
                      {"minNewTokens", 0.5},
                      {"eosTokenId", 0.5},
                      {"bosTokenId", 10.0},
                      {"forcedBosTokenId", -1.0},
                      {"forcedEosTokenId", 10.0},
                      {"suppressTokens", List{1, 10}},
                      {"beginSuppressTokens", List{-1}},
                      {"seed", -1.0},
                      {"seed", 0.5},
                      {"numReturnSequences", 0.0},
                      {"numReturnSequences", 2.0},
                      {"logprobs", 11.0},
                      {"frequencyPenalty", nan},
                      {"presencePenalty", infinity},
                      {"prefillChunk", 0.0},
                      {"doSample", 1.0},
                      {"topP", std::string("0.9")},
                      {"removeInvalidValues", 1.0},
                      {"exponentialDecayLengthPenalty", List{1}}};
  for (const auto& entry : bad) {
    const auto [code, message] = error_of({entry});
    INFO(entry.first << ": " << message);
    CHECK(code == Code::kInvalidArgument);
    CHECK(message.find(entry.first) != std::string::npos);
    CHECK(message.find("expected") != std::string::npos);
    CHECK(message.find("got") != std::string::npos);
  }
  CHECK(error_of({{"topP", 1.5}}).second == "[generate] topP: expected a number from 0 to 1, got 1.5");
}

TEST_CASE("options: unknown names are refused, known but unbuilt ones are unsupported") {
  CHECK(error_of({{"topp", 0.5}}) == std::pair{Code::kInvalidArgument, std::string("[generate] topp: unknown option")});
  CHECK(error_of({{"numBeams", 4.0}}).first == Code::kUnsupported);
  CHECK(error_of({{"numBeams", 4.0}}).second.find("numBeams") != std::string::npos);
  CHECK(error_of({{"lengthPenalty", 2.0}}).first == Code::kUnsupported);
  CHECK(error_of({{"guidanceScale", 1.5}}).first == Code::kUnsupported);
  CHECK(error_of({{"earlyStopping", true}}).first == Code::kUnsupported);
  CHECK_NOTHROW(parsed({{"numBeams", 1.0}, {"lengthPenalty", 1.0}, {"earlyStopping", false}}));
}

TEST_CASE("options: lists of lists come flattened with their lengths") {
  const Options o = parsed({{"badWordsIds", List{1, 2, 3, 7}},
                            {"badWordsIds.lengths", List{1, 2, 1}},
                            {"sequenceBias", List{4, 5, 6, 4}},
                            {"sequenceBias.lengths", List{1, 2, 1}},
                            {"sequenceBias.values", List{0.5, -1, 2}},
                            {"eosTokenId", List{7, 99}}});
  REQUIRE(o.bad_words.size() == 2);  // an end-of-sequence token cannot be a bad word
  CHECK(o.bad_words[1].ids == std::vector<int32_t>{2, 3});
  REQUIRE(o.sequence_bias.size() == 2);  // the later [4] replaces the earlier
  CHECK(o.sequence_bias[0].bias == 2);
  CHECK(o.eos == std::vector<int32_t>{7, 99});

  CHECK(error_of({{"badWordsIds", List{1, 2}}}).second.find("badWordsIds.lengths") != std::string::npos);
  CHECK(error_of({{"badWordsIds", List{1, 2}}, {"badWordsIds.lengths", List{1}}}).first == Code::kInvalidArgument);
  CHECK(error_of({{"badWordsIds", List{1, 2}}, {"badWordsIds.lengths", List{3}}}).first == Code::kInvalidArgument);
  CHECK(error_of({{"badWordsIds", List{1, 2}}, {"badWordsIds.lengths", List{0, 2}}}).first == Code::kInvalidArgument);
  CHECK(error_of({{"badWordsIds", List{}}, {"badWordsIds.lengths", List{}}}).first == Code::kInvalidArgument);
  CHECK(error_of({{"sequenceBias", List{1}}, {"sequenceBias.lengths", List{1}}}).second.find("sequenceBias.values") != std::string::npos);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(error_of({{"logitBias", List{1}}, {"logitBias.values", List{nan}}}).first == Code::kInvalidArgument);
  CHECK(error_of({{"logitBias", List{1, 1}}, {"logitBias.values", List{1, 2}}}).first == Code::kInvalidArgument);
}

}  // namespace wf::generate
