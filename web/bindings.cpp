// What JavaScript sees of a session. Every call returns { value } or { error: { code, message } }; nothing is thrown across, floats
// are copied out, and no view of the heap is kept. The only file that knows of Emscripten; the types are in web/engine/native.ts.
#include <emscripten/bind.h>
#include <emscripten/val.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/thread_pool.hpp"
#include "generate/generation.hpp"
#include "kernels/level.hpp"
#include "session/mechanism.hpp"
#include "session/session.hpp"

extern "C" void _emscripten_stack_restore(void* top);  // Emscripten's: sets the stack pointer of the calling instance

namespace {

using emscripten::val;

val error_result(const char* code, const std::string& message) {
  val error = val::object();
  error.set("code", std::string(code));
  error.set("message", message);
  val result = val::object();
  result.set("error", error);
  return result;
}

// Runs `call` and wraps what it returns, or what it throws.
template <class Call>
val guarded(const Call& call) {
  try {
    val result = val::object();
    result.set("value", val(call()));
    return result;
  } catch (const wf::Error& error) {
    return error_result(wf::name_of(error.code()), error.message());
  } catch (const std::bad_alloc&) {
    return error_result("out-of-memory", "[memory] no more could be had");
  } catch (const std::length_error&) {
    return error_result("out-of-memory", "[memory] more was asked for than can be addressed");
  } catch (const std::exception& error) {
    return error_result("internal", error.what());
  }
}

template <class T>
val copied(const std::vector<T>& values) {
  return val(emscripten::typed_memory_view(values.size(), values.data())).template call<val>("slice");
}

val list_of(const std::vector<size_t>& sizes) {
  val list = val::array();
  for (size_t i = 0; i < sizes.size(); ++i) list.set(i, sizes[i]);
  return list;
}

val tensor_of(const wf::Array& array) {
  val tensor = val::object();
  tensor.set("data", copied(array.data));
  tensor.set("shape", list_of(array.shape));
  return tensor;
}

// An array of typed arrays; undefined or null is none.
template <class T>
std::vector<std::vector<T>> lists_from(const val& lists) {
  std::vector<std::vector<T>> all;
  if (lists.isUndefined() || lists.isNull()) return all;
  const size_t count = lists["length"].as<size_t>();
  for (size_t i = 0; i < count; ++i) all.push_back(emscripten::convertJSArrayToNumberVector<T>(lists[i]));
  return all;
}

wf::Config config_from(const char* where, const val& flat) {
  wf::Config config(where);
  const val keys = val::global("Object").call<val>("keys", flat);
  const size_t count = keys["length"].as<size_t>();
  for (size_t i = 0; i < count; ++i) {
    const std::string key = keys[i].as<std::string>();
    const val value = flat[key];
    if (value.isNull() || value.isUndefined()) continue;
    if (value.isNumber()) {
      config.set(key, value.as<double>());
    } else if (value.isTrue() || value.isFalse()) {
      config.set(key, value.isTrue());
    } else if (value.isString()) {
      config.set(key, value.as<std::string>());
    } else if (!value.isArray()) {
      wf::fail(wf::Code::kInvalidArgument, where, key, ": expected a number, a string, true, false, null or a list of those");
    } else if (value["length"].as<size_t>() > 0 && value[0].isString()) {
      config.set(key, emscripten::vecFromJSArray<std::string>(value));
    } else {
      config.set(key, emscripten::convertJSArrayToNumberVector<double>(value));
    }
  }
  return config;
}

// Of this instance, once `startThreads` was called.
std::unique_ptr<wf::ThreadPool> threads;

constexpr size_t kThreadStack = size_t{1} << 18;  // bytes

void serve_thread(size_t thread) { threads->serve(thread); }
void lose_thread() { threads->lose(); }

// Makes the pool. What another worker needs to become thread number i: the table's indices of functions, and where its stack begins.
val start_threads(size_t count, size_t cores) {
  return guarded([&] {
    threads = std::make_unique<wf::ThreadPool>(count, cores);
    val stacks = val::array();
    for (size_t i = 1; i < count; ++i) {
      void* stack = std::aligned_alloc(16, kThreadStack);
      if (stack == nullptr) throw std::bad_alloc();
      stacks.set(i - 1, reinterpret_cast<size_t>(stack) + kThreadStack);
    }
    val entry = val::object();
    entry.set("setStack", reinterpret_cast<size_t>(&_emscripten_stack_restore));
    entry.set("serve", reinterpret_cast<size_t>(&serve_thread));
    entry.set("lose", reinterpret_cast<size_t>(&lose_thread));
    entry.set("stacks", stacks);
    return entry;
  });
}

class GenerationHandle {
 public:
  explicit GenerationHandle(std::unique_ptr<wf::GenerationRun> run) : run_(std::move(run)) {}

  val advance() {
    return guarded([&] { return step_of(run_->advance()); });
  }
  val conclude() {
    return guarded([&] { return step_of(run_->conclude()); });
  }

  // The reason is the caller's to remember.
  val stop(size_t sequence, const std::string&) {
    return guarded([&] {
      run_->stop(sequence);
      return val::undefined();
    });
  }

 private:
  static val step_of(const wf::generate::Step& step) {
    val tokens = val::array(), finished = val::array();
    for (const auto& emitted : step.tokens) {
      val token = val::object();
      token.set("sequence", emitted.sequence);
      token.set("index", emitted.index);
      token.set("token", emitted.token);
      token.set("logprob", emitted.logprob);
      if (emitted.top_count > 0) token.set("top", top_of(step, emitted));
      tokens.call<void>("push", token);
    }
    for (const auto& [sequence, reason, score] : step.finished) {
      val entry = val::object();
      entry.set("sequence", sequence);
      entry.set("reason", std::string(wf::generate::name_of(reason)));
      if (score) entry.set("score", *score);
      finished.call<void>("push", entry);
    }
    val result = val::object();
    result.set("done", step.done);
    result.set("grew", step.grew);
    result.set("prefilled", step.prefilled);
    result.set("tokens", tokens);
    result.set("finished", finished);
    return result;
  }

  static val top_of(const wf::generate::Step& step, const wf::generate::Emitted& emitted) {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    for (size_t i = 0; i < emitted.top_count; ++i) {
      ids.push_back(step.top[emitted.top + i].token);
      logprobs.push_back(step.top[emitted.top + i].logprob);
    }
    val top = val::object();
    top.set("ids", copied(ids));
    top.set("logprobs", copied(logprobs));
    return top;
  }

  std::unique_ptr<wf::GenerationRun> run_;
};

const char* states_name(wf::Site site) {
  switch (site) {
    case wf::Site::kEncoderHidden:
      return "encoderHiddenStates";
    case wf::Site::kDecoderHidden:
      return "decoderHiddenStates";
    case wf::Site::kEncoderAttention:
      return "encoderAttentions";
    case wf::Site::kDecoderAttention:
      return "decoderAttentions";
    case wf::Site::kCrossAttention:
      return "crossAttentions";
    case wf::Site::kAttention:
      return "attentions";
    case wf::Site::kHidden:
      break;
  }
  return "hiddenStates";
}

const char* head_name(wf::HeadKind head) {
  switch (head) {
    case wf::HeadKind::kLanguage:
      return "language";
    case wf::HeadKind::kMaskedLanguage:
      return "masked-language";
    case wf::HeadKind::kSequence:
      return "sequence";
    case wf::HeadKind::kToken:
      return "token";
    case wf::HeadKind::kQuestion:
      return "question";
    case wf::HeadKind::kNone:
      break;
  }
  return "none";
}

val advanced(bool done) {
  val result = val::object();
  result.set("done", done);
  return result;
}

class ForwardHandle {
 public:
  explicit ForwardHandle(std::unique_ptr<wf::Forward> forward) : forward_(std::move(forward)) {}

  val advance() {
    return guarded([&] { return advanced(forward_->advance()); });
  }
  val result() {
    return guarded([&] {
      val all = val::array();
      for (const wf::ForwardResult& result : forward_->results()) {
        val entry = val::object();
        const std::pair<const char*, const wf::Array*> outputs[] = {{"logits", &result.logits},
                                                                    {"startLogits", &result.start_logits},
                                                                    {"endLogits", &result.end_logits},
                                                                    {"lastHiddenState", &result.last_hidden_state},
                                                                    {"pooled", &result.pooled}};
        for (const auto& [name, array] : outputs) {
          if (!array->shape.empty()) entry.set(name, tensor_of(*array));
        }
        for (const auto* sites : {&result.states, &result.attentions}) {
          for (const auto& [site, arrays] : *sites) {
            val list = val::array();
            for (const wf::Array& array : arrays) list.call<void>("push", tensor_of(array));
            entry.set(states_name(site), list);
          }
        }
        if (!result.trace.empty()) {
          val trace = val::object();
          for (const auto& [name, array] : result.trace) trace.set(name, tensor_of(array));
          entry.set("trace", trace);
        }
        if (!result.lens.empty()) {
          val lens = val::array();
          for (size_t l = 0; l < result.lens.size(); ++l) {
            val states = tensor_of(result.lens[l]);
            if (l < result.lens_ids.size()) states.set("ids", copied(result.lens_ids[l]));
            lens.call<void>("push", states);
          }
          entry.set("logitLens", lens);
        }
        all.call<void>("push", entry);
      }
      return all;
    });
  }

 private:
  std::unique_ptr<wf::Forward> forward_;
};

class ScoreHandle {
 public:
  explicit ScoreHandle(std::unique_ptr<wf::Score> score) : score_(std::move(score)) {}

  val advance() {
    return guarded([&] { return advanced(score_->advance()); });
  }
  val result() {
    return guarded([&] {
      val all = val::array();
      for (const auto& logprobs : score_->results()) all.call<void>("push", copied(logprobs));
      return all;
    });
  }

 private:
  std::unique_ptr<wf::Score> score_;
};

val parameters_of(const std::vector<wf::Parameter>& list, const std::string& prefix) {
  val all = val::array();
  for (const wf::Parameter& parameter : list) {
    val entry = val::object();
    entry.set("name", parameter.name);
    std::vector<size_t> shape;
    for (size_t i = 0; i < parameter.shape.rank(); ++i) shape.push_back(parameter.shape[i]);
    entry.set("shape", list_of(shape));
    entry.set("prefix", prefix);
    if (!parameter.alias.empty()) entry.set("alias", parameter.alias);
    if (!parameter.option.empty()) entry.set("option", parameter.option);
    entry.set("dtype", std::string(wf::name_of(parameter.weight->dtype())));
    if (parameter.weight->use() == wf::Weight::Use::kMatrix) entry.set("linear", true);
    all.call<void>("push", entry);
  }
  return all;
}

wf::LossBatch batch_from(const val& batch) {
  return {lists_from<int32_t>(batch["inputIds"]), lists_from<int32_t>(batch["decoderInputIds"]), lists_from<int32_t>(batch["labels"])};
}

val loss_of(const wf::LossSum& sum) {
  val result = val::object();
  result.set("loss", sum.mean());
  result.set("labels", sum.labels);
  return result;
}

class TrainingHandle {
 public:
  explicit TrainingHandle(std::unique_ptr<wf::Training> training) : training_(std::move(training)) {}

  val accumulate(const val& batch) {
    return guarded([&] { return loss_of(training_->accumulate(batch_from(batch))); });
  }
  val update() {
    return guarded([&] {
      const wf::TrainStep step = training_->update();
      val result = val::object();
      result.set("step", step.step);
      result.set("loss", step.loss);
      result.set("gradientNorm", step.gradient_norm);
      result.set("learningRate", step.learning_rate);
      return result;
    });
  }
  val evaluate(const val& batch) {
    return guarded([&] { return loss_of(training_->evaluate(batch_from(batch))); });
  }
  val moments(size_t parameter) {
    return guarded([&] {
      const wf::Training::Moments moments = training_->moments(parameter);
      val result = val::object();
      result.set("first", tensor_of(moments.first));
      result.set("second", tensor_of(moments.second));
      return result;
    });
  }
  val set_moments(size_t parameter, const val& first, const val& second) {
    return guarded([&] {
      training_->set_moments(parameter, emscripten::convertJSArrayToNumberVector<float>(first),
                             emscripten::convertJSArrayToNumberVector<float>(second));
      return val::undefined();
    });
  }
  val set_step(uint32_t step) {
    return guarded([&] {
      training_->set_step(step);
      return val::undefined();
    });
  }

 private:
  std::unique_ptr<wf::Training> training_;
};

class SessionHandle {
 public:
  SessionHandle(const wf::Config& config, const wf::Config& options) : session_(config, options, threads.get()) {}

  val parameters() {
    return guarded([&] { return parameters_of(session_.parameters(), session_.prefix()); });
  }

  val plan(const val& names) {
    return guarded([&] {
      std::vector<wf::DType> dtypes;
      for (const std::string& name : emscripten::vecFromJSArray<std::string>(names)) dtypes.push_back(wf::dtype_named(name));
      const wf::Plan plan = session_.plan(dtypes);
      val result = val::object();
      result.set("weights", static_cast<double>(plan.weights));
      result.set("workspace", plan.workspace);
      result.set("cachePerToken", plan.cache_per_token);
      val stores = val::array();
      for (const wf::DType store : plan.stores) stores.call<void>("push", std::string(wf::name_of(store)));
      result.set("stores", stores);
      return result;
    });
  }

  val allocate() {
    return guarded([&] {
      session_.allocate();
      return val::undefined();
    });
  }

  val stage(size_t bytes) {
    return guarded([&] { return reinterpret_cast<size_t>(session_.stage(bytes)); });
  }

  val load_rows(size_t parameter, size_t begin, size_t count) {
    return guarded([&] {
      session_.load_rows(parameter, begin, count);
      return val::undefined();
    });
  }

  val draw_rows(double seed, size_t parameter, size_t begin, size_t count) {
    return guarded([&] {
      session_.draw_rows(seed, parameter, begin, count);
      return val::undefined();
    });
  }

  val finish_loading() {
    return guarded([&] {
      session_.finish_loading();
      return val::undefined();
    });
  }

  val info() {
    return guarded([&] {
      const wf::ModelInfo& info = session_.info();
      val result = val::object();
      result.set("architecture", info.architecture);
      result.set("parameters", session_.parameter_count());
      result.set("layers", info.layers);
      result.set("heads", info.heads);
      result.set("kvHeads", info.kv_heads);
      result.set("headSize", info.head_size);
      result.set("hiddenSize", info.hidden_size);
      result.set("vocabSize", info.vocab_size);
      result.set("maxPositions", info.positions_are_a_wall ? info.context : size_t{0});
      result.set("context", info.context);
      result.set("positions", info.positions);
      result.set("encoderDecoder", session_.has_encoder());
      result.set("encoderLayers", session_.encoder_layers());
      result.set("encoderHeads", session_.encoder_heads());
      result.set("encoderOnly", info.encoder_only);
      result.set("head", std::string(head_name(info.head)));
      result.set("labels", info.labels);
      result.set("hasPooler", info.has_pooler);
      result.set("tokenTypes", info.token_types);
      result.set("sourceVocabSize", info.source_vocab_size != 0 ? info.source_vocab_size : info.vocab_size);
      return result;
    });
  }

  val memory() {
    return guarded([&] {
      const wf::Memory memory = session_.memory();
      val result = val::object();
      result.set("weights", memory.weights);
      result.set("arena", memory.arena);
      result.set("cache", memory.cache);
      result.set("total", memory.weights + memory.arena + memory.cache);
      return result;
    });
  }

  val start_generation(const val& prompts, const val& options, uint32_t cache) {
    return guarded([&] {
      return std::make_shared<GenerationHandle>(
          session_.start_generation(lists_from<int32_t>(prompts), config_from("generate", options), cache));
    });
  }

  val start_forward(const val& input, const val& request) {
    return guarded([&] {
      wf::ForwardInput lists{lists_from<int32_t>(input["inputIds"]),      lists_from<int32_t>(input["positionIds"]),
                             lists_from<uint8_t>(input["attentionMask"]), lists_from<int32_t>(input["decoderInputIds"]),
                             lists_from<int32_t>(input["tokenTypeIds"]),  lists_from<uint8_t>(input["decoderAttentionMask"])};
      return std::make_shared<ForwardHandle>(session_.start_forward(std::move(lists), config_from("forward", request)));
    });
  }

  val start_score(const val& sequences) {
    return guarded([&] { return std::make_shared<ScoreHandle>(session_.start_score(lists_from<int32_t>(sequences))); });
  }

  val parameter(size_t index) {
    return guarded([&] { return tensor_of(session_.parameter(index)); });
  }

  val create_cache() {
    return guarded([&] { return session_.create_cache(); });
  }
  val clone_cache(uint32_t id) {
    return guarded([&] { return session_.clone_cache(id); });
  }
  val truncate_cache(uint32_t id, size_t length) {
    return guarded([&] { return session_.truncate_cache(id, length); });
  }
  val cache_length(uint32_t id) {
    return guarded([&] { return session_.cache_length(id); });
  }
  val delete_cache(uint32_t id) {
    return guarded([&] {
      session_.delete_cache(id);
      return val::undefined();
    });
  }

  val gradients(const val& batch) {
    return guarded([&] {
      wf::LossBatch lists = batch_from(batch);
      lists.smoothing = batch["labelSmoothing"].as<float>();
      const double loss = session_.compute_gradients(lists);
      val all = val::object();
      for (const wf::Parameter& parameter : session_.parameters()) {
        if (parameter.weight->constant()) continue;
        wf::Array gradient{{}, std::vector<float>(parameter.shape.size())};
        for (size_t i = 0; i < parameter.shape.rank(); ++i) gradient.shape.push_back(parameter.shape[i]);
        parameter.read(gradient.data.data(), true);
        all.set(parameter.name, tensor_of(gradient));
      }
      val result = val::object();
      result.set("loss", loss);
      result.set("gradients", all);
      return result;
    });
  }

  val add_adapter(const val& options) {
    return guarded([&] {
      session_.add_adapter(config_from("lora", options));
      return parameters_of(session_.adapter_parameters(), "");
    });
  }
  val adapter_parameter(size_t index) {
    return guarded([&] { return tensor_of(session_.adapter_parameter(index)); });
  }
  val write_adapter(size_t index, const std::string& dtype, const val& bytes) {
    return guarded([&] {
      session_.write_adapter(index, wf::dtype_named(dtype), emscripten::convertJSArrayToNumberVector<uint8_t>(bytes));
      return val::undefined();
    });
  }
  val merge_adapter() {
    return guarded([&] {
      session_.merge_adapter();
      return val::undefined();
    });
  }
  val remove_adapter() {
    return guarded([&] {
      session_.remove_adapter();
      return val::undefined();
    });
  }

  val start_training(const val& options) {
    return guarded([&] { return std::make_shared<TrainingHandle>(session_.start_training(config_from("train", options))); });
  }

 private:
  wf::Session session_;
};

val create_session(const val& config, const val& options) {
  return guarded([&] { return std::make_shared<SessionHandle>(config_from("config.json", config), config_from("load", options)); });
}

val process_logits(const val& scores, size_t prompt_length, const val& ids, const val& options) {
  return guarded([&] {
    const auto values = emscripten::convertJSArrayToNumberVector<float>(scores);
    const auto history = emscripten::convertJSArrayToNumberVector<int32_t>(ids);
    const auto parsed = wf::generate::parse_options(config_from("generate", options), values.size());
    return copied(wf::generate::process_logits(values, history, prompt_length, parsed));
  });
}

std::string simd_level() { return wf::kernels::simd_level(); }

val run_mechanism(const std::string& operation, const val& tensors, const val& options) {
  return guarded([&] {
    wf::Arrays given;
    for (const std::string& name : emscripten::vecFromJSArray<std::string>(val::global("Object").call<val>("keys", tensors))) {
      const val tensor = tensors[name];
      given[name] = {emscripten::convertJSArrayToNumberVector<size_t>(tensor["shape"]),
                     emscripten::convertJSArrayToNumberVector<float>(tensor["data"])};
    }
    val results = val::object();
    for (const auto& [name, array] : wf::run_mechanism(operation, given, config_from(operation.c_str(), options))) {
      results.set(name, tensor_of(array));
    }
    return results;
  });
}

EMSCRIPTEN_BINDINGS(wasmformer) {
  emscripten::class_<GenerationHandle>("Generation")
      .smart_ptr<std::shared_ptr<GenerationHandle>>("GenerationPointer")
      .function("advance", &GenerationHandle::advance)
      .function("conclude", &GenerationHandle::conclude)
      .function("stop", &GenerationHandle::stop);
  emscripten::class_<ForwardHandle>("Forward")
      .smart_ptr<std::shared_ptr<ForwardHandle>>("ForwardPointer")
      .function("advance", &ForwardHandle::advance)
      .function("result", &ForwardHandle::result);
  emscripten::class_<ScoreHandle>("Score")
      .smart_ptr<std::shared_ptr<ScoreHandle>>("ScorePointer")
      .function("advance", &ScoreHandle::advance)
      .function("result", &ScoreHandle::result);
  emscripten::class_<SessionHandle>("Session")
      .smart_ptr<std::shared_ptr<SessionHandle>>("SessionPointer")
      .function("parameters", &SessionHandle::parameters)
      .function("plan", &SessionHandle::plan)
      .function("allocate", &SessionHandle::allocate)
      .function("stage", &SessionHandle::stage)
      .function("loadRows", &SessionHandle::load_rows)
      .function("drawRows", &SessionHandle::draw_rows)
      .function("finishLoading", &SessionHandle::finish_loading)
      .function("info", &SessionHandle::info)
      .function("memory", &SessionHandle::memory)
      .function("startGeneration", &SessionHandle::start_generation)
      .function("startForward", &SessionHandle::start_forward)
      .function("startScore", &SessionHandle::start_score)
      .function("parameter", &SessionHandle::parameter)
      .function("createCache", &SessionHandle::create_cache)
      .function("cloneCache", &SessionHandle::clone_cache)
      .function("truncateCache", &SessionHandle::truncate_cache)
      .function("cacheLength", &SessionHandle::cache_length)
      .function("deleteCache", &SessionHandle::delete_cache)
      .function("gradients", &SessionHandle::gradients)
      .function("startTraining", &SessionHandle::start_training)
      .function("addAdapter", &SessionHandle::add_adapter)
      .function("adapterParameter", &SessionHandle::adapter_parameter)
      .function("writeAdapter", &SessionHandle::write_adapter)
      .function("mergeAdapter", &SessionHandle::merge_adapter)
      .function("removeAdapter", &SessionHandle::remove_adapter);
  emscripten::class_<TrainingHandle>("Training")
      .smart_ptr<std::shared_ptr<TrainingHandle>>("TrainingPointer")
      .function("accumulate", &TrainingHandle::accumulate)
      .function("update", &TrainingHandle::update)
      .function("evaluate", &TrainingHandle::evaluate)
      .function("moments", &TrainingHandle::moments)
      .function("setMoments", &TrainingHandle::set_moments)
      .function("setStep", &TrainingHandle::set_step);
  emscripten::function("simdLevel", &simd_level);
  emscripten::function("startThreads", &start_threads);
  emscripten::function("createSession", &create_session);
  emscripten::function("processLogits", &process_logits);
  emscripten::function("runMechanism", &run_mechanism);
}

}  // namespace
