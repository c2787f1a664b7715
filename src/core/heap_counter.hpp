// For tests that assert that something allocates nothing.
#pragma once

#include <cstddef>

namespace wf::testing {

// Calls of the global operator new since the test program began.
size_t new_count();

}  // namespace wf::testing
