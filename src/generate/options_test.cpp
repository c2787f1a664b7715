#include "generate/options.hpp"

#include <catch_amalgamated.hpp>
#include <cmath>
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
  CHECK(error_of({{"guidanceScale", 1.5}}).first == Code::kUnsupported);
  CHECK(error_of({{"numBeamGroups", 2.0}}).first == Code::kUnsupported);
  CHECK(error_of({{"numBeamGroups", 2.0}}).second.find("numBeamGroups") != std::string::npos);
  CHECK_NOTHROW(parsed({{"numBeamGroups", 1.0}, {"guidanceScale", 1.0}, {"lowMemory", false}}));
}

TEST_CASE("options: beams") {
  const Options none = parsed({});
  CHECK(none.beams == 1);
  CHECK(none.length_penalty == 1);
  CHECK(none.early_stopping == EarlyStopping::kHeuristic);
  CHECK(none.least_candidates() == 1);
  const Options o = parsed({{"numBeams", 4.0},
                            {"numReturnSequences", 4.0},
                            {"lengthPenalty", -0.5},
                            {"earlyStopping", std::string("never")},
                            {"eosTokenId", List{1, 2}},
                            {"decoderStartTokenId", List{3, 4}},
                            {"decoderInputIds", List{3, 5, 4}},
                            {"decoderInputIds.lengths", List{2, 1}},
                            {"encoderNoRepeatNgramSize", 3.0},
                            {"encoderRepetitionPenalty", 1.5}});
  CHECK(o.beams == 4);
  CHECK(o.return_sequences == 4);
  CHECK(o.length_penalty == -0.5);
  CHECK(o.early_stopping == EarlyStopping::kNever);
  CHECK(o.least_candidates() == 3);  // one more than the end-of-sequence tokens
  CHECK(o.decoder_start == std::vector<int32_t>{3, 4});
  CHECK(o.decoder_prefix == std::vector<std::vector<int32_t>>{{3, 5}, {4}});
  CHECK(o.encoder_no_repeat_ngram_size == 3);
  CHECK(o.encoder_repetition_penalty == 1.5);
  CHECK(parsed({{"earlyStopping", true}}).early_stopping == EarlyStopping::kFirst);
  CHECK(parsed({{"earlyStopping", false}}).early_stopping == EarlyStopping::kHeuristic);
  CHECK(parsed({{"numBeams", 2.0}}).least_candidates() == 2);

  CHECK(error_of({{"earlyStopping", std::string("always")}}).second ==
        "[generate] earlyStopping: expected true, false or \"never\", got 'always'");
  CHECK(error_of({{"numBeams", 2.0}, {"numReturnSequences", 3.0}}).second ==
        "[generate] numReturnSequences: expected at most the 2 of numBeams, got 3");
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{{"numBeams", 0},
                                                                                         {"numBeams", 1.5},
                                                                                         {"lengthPenalty", INFINITY},
                                                                                         {"lengthPenalty", NAN},
                                                                                         {"encoderRepetitionPenalty", 0},
                                                                                         {"decoderStartTokenId", 10}}) {
    INFO(name << " " << value);
    CHECK(error_of({{name, value}}).first == Code::kInvalidArgument);
  }
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
