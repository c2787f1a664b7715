#include "train/trainer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "kernels/optimise.hpp"
#include "train/muon.hpp"

namespace wf {

namespace {

constexpr const char* kWhere = "train";
constexpr size_t kRehearsal = size_t{1} << 31;  // weights times tokens
constexpr uint32_t kSites = 1 << 16;            // of dropout, that a micro-batch may use

uint64_t weight_bytes(const Weight& weight) {
  return checked_product(checked_product(weight.rows(), weight.cols(), kWhere), sizeof(float), kWhere);
}

double in_range(const Config& options, std::string_view key, double fallback, double least, double below, const char* expected) {
  const double value = options.number(key, fallback);
  if (!(value >= least && value < below)) options.reject(key, expected);
  return value;
}

uint32_t whole(const Config& options, std::string_view key) {
  return static_cast<uint32_t>(std::min<size_t>(options.size(key, 0), UINT32_MAX));
}

}  // namespace

TrainOptions TrainOptions::parse(const Config& options, const ModelInfo& info) {
  constexpr std::array<std::string_view, 16> kKnown{
      "optimizer", "learningRate", "schedule",    "warmup",         "steps",   "beta1", "beta2",         "epsilon",
      "tokens",    "longest",      "weightDecay", "labelSmoothing", "dropout", "seed",  "checkpointing", "maxGradNorm"};
  for (const auto& [key, value] : options.values()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) fail(Code::kInvalidArgument, kWhere, key, ": unknown option");
  }
  TrainOptions made;
  const std::string optimizer = options.string("optimizer", "adamw"), schedule = options.string("schedule", "constant");
  if (optimizer != "adamw" && optimizer != "adam" && optimizer != "muon") options.reject("optimizer", "'adamw', 'adam' or 'muon'");
  made.decoupled = optimizer != "adam";
  made.muon = optimizer == "muon";
  using Kind = Schedule::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {{"constant", Kind::kConstant},
                                                          {"linear", Kind::kLinear},
                                                          {"cosine", Kind::kCosine},
                                                          {"inverse_sqrt", Kind::kInverseSqrt},
                                                          {"paper", Kind::kPaper}};
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& kind) { return kind.first == schedule; });
  if (found == std::end(kKinds)) options.reject("schedule", "'constant', 'linear', 'cosine', 'inverse_sqrt' or 'paper'");
  const bool ends = found->second == Kind::kLinear || found->second == Kind::kCosine, paper = found->second == Kind::kPaper;
  made.schedule.kind = found->second;
  made.schedule.peak = in_range(options, "learningRate", 3e-4, 0, HUGE_VAL, "a finite number from 0");
  made.schedule.warmup = whole(options, "warmup");
  made.schedule.steps = whole(options, "steps");
  made.schedule.hidden_size = static_cast<double>(info.hidden_size);
  if (ends && made.schedule.steps == 0) options.reject("steps", "the number of steps after which the schedule has ended");
  if (ends && made.schedule.warmup >= made.schedule.steps) options.reject("warmup", "fewer steps than `steps`");
  if (paper && options.has("learningRate")) options.reject("learningRate", "none: the schedule 'paper' has its own");
  if (paper && made.schedule.warmup == 0) options.reject("warmup", "at least one step, for the schedule 'paper'");
  made.beta1 = in_range(options, "beta1", 0.9, 0, 1, "a number from 0, below 1");
  made.beta2 = in_range(options, "beta2", 0.999, 0, 1, "a number from 0, below 1");
  made.epsilon = in_range(options, "epsilon", 1e-8, 0, HUGE_VAL, "a finite number from 0");
  made.weight_decay = in_range(options, "weightDecay", made.decoupled ? 0.01 : 0, 0, HUGE_VAL, "a finite number from 0");
  made.max_gradient_norm = in_range(options, "maxGradNorm", 1, 0, HUGE_VAL, "a finite number from 0");
  made.smoothing = static_cast<float>(in_range(options, "labelSmoothing", 0, 0, 1, "a number from 0, below 1"));
  made.dropout = static_cast<float>(in_range(options, "dropout", 0.1, 0, 1, "a number from 0, below 1"));
  made.seed = static_cast<uint64_t>(in_range(options, "seed", 0, 0, 0x1p53, "a whole number from 0"));
  made.checkpointing = options.boolean("checkpointing", false);
  made.tokens = options.size("tokens", 0);
  made.longest = options.size("longest", made.tokens);
  return made;
}

Trainer::Trainer(const Model& model, const Parameters& trained, Arena& arena, ThreadPool* threads, const TrainOptions& options)
    : model_(model), trained_(trained), arena_(arena), threads_(threads), options_(options) {
  expect_trainable(model, trained, kWhere);
  for (Weight* weight : trained.weights()) {
    const size_t bytes = static_cast<size_t>(weight_bytes(*weight));
    Moments& moments = moments_.emplace_back(Moments{weight, Buffer(bytes, "an optimiser's state"), Buffer(bytes, "an optimiser's state")});
    std::fill_n(moments.first.floats(), bytes / sizeof(float), 0.0f);
    std::fill_n(moments.second.floats(), bytes / sizeof(float), 0.0f);
  }
  clear();
}

uint64_t Trainer::moment_bytes(const Parameters& trained) {
  uint64_t bytes = 0;
  for (const Weight* weight : trained.weights()) bytes += 2 * weight_bytes(*weight);
  return bytes;
}

// Memory is a number of bytes, so many a token, and so many for each pair of tokens of a sequence: three passes tell.
uint64_t Trainer::workspace_bytes() {
  const size_t wall = model_.info().positions_are_a_wall ? model_.info().context : SIZE_MAX;
  // Few enough tokens for a second, as many as that of those that will come: some workspace stops growing at a tile.
  const uint64_t weights = std::max<uint64_t>(moment_bytes(model_.parameters()) / (2 * sizeof(float)), 1);
  const size_t affordable = static_cast<size_t>(std::clamp<uint64_t>(kRehearsal / weights, 16, 256));
  const size_t length = std::max<size_t>(std::min({options_.longest, wall, affordable}) / 2, 1);
  const auto measured = [&](size_t sequences, size_t tokens) {
    Arena arena(size_t{1} << 12);
    Dropout dropout{options_.dropout, {options_.seed, 0, 0}};
    rehearse(model_, context(arena, &dropout), sequences, tokens);
    return static_cast<double>(arena.peak_bytes());
  };
  const double n = static_cast<double>(length), one = measured(1, length), two = measured(2, length);
  const double twice = 2 * length <= wall ? measured(1, 2 * length) : two;
  clear();
  const double a_pair = std::max(0.0, (twice - two) / (2 * n * n)), a_token = std::max(0.0, (two - one) / n - a_pair * n);
  const double tokens = static_cast<double>(options_.tokens), longest = static_cast<double>(options_.longest);
  const double logits = 2.0 * sizeof(float) * static_cast<double>(logit_floats(model_, options_.tokens));
  size_t step = 0;
  for (const Parameter& parameter : trained_.list()) {
    if (takes_muon(*parameter.weight)) step = std::max(step, muon_floats(parameter.stored_rows(), parameter.row_size()));
  }
  return std::max(static_cast<uint64_t>(1.15 * (one + tokens * (a_token + longest * a_pair) + logits)), uint64_t{step} * sizeof(float));
}

Context Trainer::context(Arena& arena, Dropout* dropout) const {
  Context ctx{arena};
  ctx.pool = threads_;
  ctx.dropout = options_.dropout > 0 ? dropout : nullptr;
  ctx.checkpoint = options_.checkpointing;
  return ctx;
}

void Trainer::clear() {
  for (const Moments& moments : moments_) moments.weight->clear_gradient();
  gathered_ = {};
  batches_ = 0;
}

// Names the first tensor whose numbers are no longer finite, weights before gradients; otherwise the one with the largest gradient.
void Trainer::diverge(const char* what, double value) {
  const Parameter* culprit = nullptr;
  const char* of = "the largest gradient is that of ";
  std::vector<float> numbers;
  const auto look = [&](const Parameters& parameters, bool gradients, const char* described) {
    for (const Parameter& parameter : parameters.list()) {
      if (culprit != nullptr) return;
      numbers.resize(parameter.shape.size());
      parameter.read(numbers.data(), gradients);
      if (kernels::first_not_finite(numbers.data(), numbers.size()) == numbers.size()) continue;
      culprit = &parameter;
      of = described;
    }
  };
  look(model_.parameters(), false, "not finite first is ");
  look(trained_, false, "not finite first is ");
  look(trained_, true, "not finite first is the gradient of ");
  if (culprit == nullptr) {
    double most = -1;
    for (const Parameter& parameter : trained_.list()) {
      numbers.resize(parameter.shape.size());
      parameter.read(numbers.data(), true);
      const double size = kernels::sum_of_squares(numbers.data(), numbers.size());
      if (size > most) culprit = &parameter, most = size;
    }
  }
  const std::string name = culprit->name;
  clear();
  fail(Code::kDiverged, kWhere, "step ", step_ + 1, ": expected a ", what, ", got ", value, "; ", of, name);
}

LossSum Trainer::accumulate(LossBatch batch) {
  batch.smoothing = options_.smoothing;
  expect_batch(model_, batch, kWhere);
  if (batches_ == 0) clear();  // of what others, asking for gradients, have left
  Dropout dropout{options_.dropout, {options_.seed, step_ + 1, batches_ * kSites}};
  const LossSum sum = add_gradients(model_, context(arena_, &dropout), batch, 1);
  if (!std::isfinite(sum.sum)) diverge("finite loss", sum.mean());
  // Guessing evenly costs ln V: far beyond that, and beyond what the model began with, nothing is being learned.
  if (!first_loss_) first_loss_ = sum.mean();
  const double most = 10 + 4 * std::max(*first_loss_, std::log(static_cast<double>(model_.info().vocab_size)));
  if (sum.mean() > most) diverge("loss that does not explode", sum.mean());
  gathered_.sum += sum.sum;
  gathered_.labels += sum.labels;
  ++batches_;
  return sum;
}

TrainStep Trainer::update() {
  if (gathered_.labels == 0) fail(Code::kInvalidArgument, kWhere, "update: expected at least one micro-batch, got none");
  const double share = 1 / static_cast<double>(gathered_.labels);
  double squares = 0;
  for (const Moments& moments : moments_) {
    if (!moments.weight->trainable()) continue;
    squares += kernels::sum_of_squares(moments.weight->gradient(), moments.first.bytes() / sizeof(float));
  }
  const double norm = std::sqrt(squares) * share;
  if (!std::isfinite(norm)) diverge("finite gradient", norm);
  // As torch.nn.utils.clip_grad_norm_.
  const double clip = options_.max_gradient_norm > 0 ? std::min(1.0, options_.max_gradient_norm / (norm + 1e-6)) : 1;
  const uint32_t step = step_ + 1;
  kernels::AdamStep adam{
      options_.schedule.at(step),         options_.beta1, options_.beta2,     options_.epsilon, 0, 1 - std::pow(options_.beta1, step),
      1 - std::pow(options_.beta2, step), share * clip,   !options_.decoupled};
  Context ctx = context(arena_, nullptr);
  for (const Parameter& parameter : trained_.list()) {
    Weight& weight = *parameter.weight;
    if (!takes_muon(weight)) continue;
    const size_t rows = parameter.shape.size() / weight.cols(), at = parameter.row * weight.cols();
    muon(ctx, weight.values() + at, weight.gradient() + at, moments_[index_of(parameter)].first.floats() + at, rows, weight.cols(),
         {adam.learning_rate, options_.weight_decay, adam.scale});
  }
  for (Moments& moments : moments_) {
    if (!moments.weight->trainable() || takes_muon(*moments.weight)) continue;
    adam.weight_decay = moments.weight->use() == Weight::Use::kVector ? 0 : options_.weight_decay;
    constexpr size_t kPiece = 1024;  // floats that one thread changes at a time
    const size_t count = moments.first.bytes() / sizeof(float);
    ctx.share((count + kPiece - 1) / kPiece, 16 * count, [&](size_t begin, size_t end, size_t) {
      const size_t at = begin * kPiece, n = std::min(end * kPiece, count) - at;
      kernels::adamw(moments.weight->values() + at, moments.weight->gradient() + at, moments.first.floats() + at,
                     moments.second.floats() + at, n, adam);
    });
  }
  step_ = step;
  const double loss = std::exchange(gathered_, {}).mean();
  batches_ = 0;
  return {step, loss, norm, adam.learning_rate};
}

LossSum Trainer::evaluate(const LossBatch& batch) {
  LossBatch plain = batch;
  plain.smoothing = 0;
  expect_batch(model_, plain, kWhere);
  return loss(model_, context(arena_, nullptr), plain);
}

size_t Trainer::index_of(const Parameter& parameter) const {
  const auto found = std::find_if(moments_.begin(), moments_.end(), [&](const Moments& one) { return one.weight == parameter.weight; });
  return static_cast<size_t>(found - moments_.begin());
}

void Trainer::read_moments(const Parameter& parameter, float* first, float* second) const {
  const Moments& moments = moments_[index_of(parameter)];
  parameter.gather(moments.first.floats(), first);
  parameter.gather(moments.second.floats(), second);
}

void Trainer::write_moments(const Parameter& parameter, const float* first, const float* second) {
  Moments& moments = moments_[index_of(parameter)];
  parameter.scatter(first, moments.first.floats());
  parameter.scatter(second, moments.second.floats());
}

}  // namespace wf
