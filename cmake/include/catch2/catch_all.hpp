#pragma once
// Catch2's usual name for "everything", mapped to the amalgamated header that is compiled here.
#include <catch_amalgamated.hpp>
