// The rows of tables that stand for padding.
#pragma once

#include "core/config.hpp"
#include "models/model.hpp"

namespace wf {

// Marks them where transformers' embeddings have a `padding_idx`: of tokens, and of positions that begin behind the padding token's.
void mark_padding(const Config& config, const Model& model);

}  // namespace wf
