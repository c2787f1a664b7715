// Every architecture there is.
#include <array>
#include <string_view>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/model.hpp"
#include "models/padding.hpp"

namespace wf {

namespace {

struct Entry {
  std::string_view model_type;
  std::unique_ptr<Model> (*make)(const Config&);
  bool knows_heads = false;  // reads `architectures` itself; others say what the next token is
};

constexpr std::array kArchitectures{
    Entry{"gpt2", make_gpt2},
    Entry{"llama", make_llama},
    Entry{"mistral", make_llama},
    Entry{"qwen2", make_llama},
    Entry{"qwen3", make_llama},
    Entry{"gemma", make_llama},
    Entry{"gpt_neox", make_gpt_neox},
    Entry{"opt", make_opt},
    Entry{"bloom", make_bloom},
    Entry{"transformer", make_transformer, true},
    Entry{"bart", make_bart},
    Entry{"mbart", make_mbart},
    Entry{"marian", make_marian},
    Entry{"pegasus", make_pegasus},
    Entry{"m2m_100", make_m2m_100},
    Entry{"t5", make_t5},
    Entry{"mt5", make_mt5},
    Entry{"bert", make_bert, true},
    Entry{"roberta", make_bert, true},
    Entry{"xlm-roberta", make_bert, true},
    Entry{"camembert", make_bert, true},
    Entry{"distilbert", make_bert, true},
    Entry{"albert", make_bert, true},
};

}  // namespace

std::unique_ptr<Model> make_model(const Config& config) {
  const std::string type = config.string("model_type");
  std::string known;
  for (const Entry& entry : kArchitectures) {
    known += (known.empty() ? "" : ", ") + std::string(entry.model_type);
    if (entry.model_type != type) continue;
    if (!entry.knows_heads) {
      for (const std::string& name : config.strings("architectures")) expect_language_model(name);
    }
    std::unique_ptr<Model> model = entry.make(config);
    mark_padding(config, *model);
    return model;
  }
  fail(Code::kUnsupported, "config.json", "model_type: expected one of ", known, ", got '", type, "'");
}

}  // namespace wf
