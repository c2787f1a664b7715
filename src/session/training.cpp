#include "session/training.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace wf {

Training::Training(std::shared_ptr<Runtime> runtime, std::shared_ptr<Lora> lora, const Config& options)
    : runtime_(std::move(runtime)), lora_(std::move(lora)) {
  const TrainOptions parsed = TrainOptions::parse(options, runtime_->model->info());
  expect_trainable(*runtime_->model, trained(), "train");
  const uint64_t moments = Trainer::moment_bytes(trained());
  runtime_->make_room(moments, "train", "the optimiser's state");
  trainer_ = std::make_unique<Trainer>(*runtime_->model, trained(), runtime_->arena, runtime_->threads, parsed);
  const uint64_t workspace = trainer_->workspace_bytes();
  runtime_->make_room(moments + workspace - std::min<uint64_t>(workspace, runtime_->arena.bytes()), "train",
                      "the optimiser's state and the activations of a micro-batch");
  bytes_ = static_cast<size_t>(moments);
  runtime_->weight_bytes += bytes_;
}

Training::~Training() { runtime_->weight_bytes -= bytes_; }

TrainStep Training::update() {
  const TrainStep step = trainer().update();
  ++runtime_->weights_version;
  return step;
}

const Parameter& Training::parameter(size_t index) const {
  const auto& list = trained().list();
  if (index >= list.size()) fail(Code::kInvalidArgument, "train", "parameter: expected 0 to ", list.size() - 1, ", got ", index);
  return list[index];
}

Training::Moments Training::moments(size_t index) const {
  const Parameter& one = parameter(index);
  Moments moments;
  for (Array* array : {&moments.first, &moments.second}) {
    array->data.resize(one.shape.size());
    for (size_t i = 0; i < one.shape.rank(); ++i) array->shape.push_back(one.shape[i]);
  }
  trainer_->read_moments(one, moments.first.data.data(), moments.second.data.data());
  return moments;
}

void Training::set_moments(size_t index, std::span<const float> first, std::span<const float> second) {
  const Parameter& one = parameter(index);
  if (first.size() != one.shape.size() || second.size() != one.shape.size()) {
    fail(Code::kShapeMismatch, "train", "moments of ", one.name, ": expected ", one.shape.size(), " numbers each, got ", first.size(),
         " and ", second.size());
  }
  trainer_->write_moments(one, first.data(), second.data());
}

}  // namespace wf
