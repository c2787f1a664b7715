#include "core/config.hpp"

#include <catch_amalgamated.hpp>
#include <cmath>

#include "core/testing.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

Config example() {
  Config config("config.json");
  config.set("n_layer", 12.0);
  config.set("eps", 1e-5);
  config.set("negative", -1.0);
  config.set("fraction", 2.5);
  config.set("nan", std::nan(""));
  config.set("huge", 2147483648.0);
  config.set("infinite", INFINITY);
  config.set("flag", true);
  config.set("name", std::string("gelu"));
  config.set("null", std::monostate{});
  config.set("list", std::vector<double>{1, 2.5});
  config.set("words", std::vector<std::string>{"a", "b"});
  config.set("no_numbers", std::vector<double>{});
  config.set("no_words", std::vector<std::string>{});
  return config;
}

}  // namespace

TEST_CASE("values of the right type are read, absent ones have their fallback", "[config]") {
  const Config config = example();
  CHECK(config.size("n_layer") == 12);
  CHECK(config.size("absent", 7) == 7);
  CHECK(config.size("null", 7) == 7);
  CHECK(config.number("eps", 1) == 1e-5);
  CHECK(config.number("absent", 0.25) == 0.25);
  CHECK(config.boolean("flag", false));
  CHECK(config.boolean("absent", true));
  CHECK(config.string("name") == "gelu");
  CHECK(config.string("absent", "relu") == "relu");
  CHECK(config.numbers("list") == std::vector<double>{1, 2.5});
  CHECK(config.numbers("eps") == std::vector<double>{1e-5});
  CHECK(config.numbers("absent").empty());
  CHECK(config.numbers("no_words").empty());
  CHECK(config.strings("words") == std::vector<std::string>{"a", "b"});
  CHECK(config.strings("name") == std::vector<std::string>{"gelu"});
  CHECK(config.strings("no_numbers").empty());
  CHECK(config.has("flag"));
  CHECK_FALSE(config.has("null"));
  CHECK(config.is_null("null"));
  CHECK_FALSE(config.is_null("flag"));
  CHECK_FALSE(config.is_null("absent"));
}

TEST_CASE("a value of another type is an error that names the key, the expected and what was found", "[config]") {
  const Config config = example();
  const std::string whole = ": expected a whole number from 0 to 2147483647, got ";
  const auto error_of = [](auto read) { return outcome([&] { static_cast<void>(read()); }); };
  CHECK(error_of([&] { return config.size("absent"); }) == "invalid-argument [config.json] absent" + whole + "nothing");
  CHECK(error_of([&] { return config.size("null"); }) == "invalid-argument [config.json] null" + whole + "nothing");
  CHECK(error_of([&] { return config.size("negative", 1); }) == "invalid-argument [config.json] negative" + whole + "-1");
  CHECK(error_of([&] { return config.size("fraction"); }) == "invalid-argument [config.json] fraction" + whole + "2.5");
  CHECK(error_of([&] { return config.size("nan"); }) == "invalid-argument [config.json] nan" + whole + "NaN");
  CHECK(error_of([&] { return config.size("huge"); }) == "invalid-argument [config.json] huge" + whole + "2.14748365e+09");
  CHECK(error_of([&] { return config.size("infinite"); }) == "invalid-argument [config.json] infinite" + whole + "Infinity");
  CHECK(error_of([&] { return config.size("name"); }) == "invalid-argument [config.json] name" + whole + "'gelu'");
  CHECK(error_of([&] { return config.size("flag"); }) == "invalid-argument [config.json] flag" + whole + "true");
  CHECK(error_of([&] { return config.number("list"); }) ==
        "invalid-argument [config.json] list: expected a number, got a list of 2 numbers");
  CHECK(error_of([&] { return config.number("absent"); }) == "invalid-argument [config.json] absent: expected a number, got nothing");
  CHECK(error_of([&] { return config.boolean("n_layer", false); }) ==
        "invalid-argument [config.json] n_layer: expected true or false, got 12");
  CHECK(error_of([&] { return config.string("flag"); }) == "invalid-argument [config.json] flag: expected a string, got true");
  CHECK(error_of([&] { return config.numbers("words"); }) ==
        "invalid-argument [config.json] words: expected a list of numbers, got a list of strings");
  CHECK(error_of([&] { return config.strings("list"); }) ==
        "invalid-argument [config.json] list: expected a list of strings, got a list of 2 numbers");
  Config options("options");
  options.set("topK", -3.0);
  CHECK(error_of([&] { return options.size("topK"); }) == "invalid-argument [options] topK" + whole + "-3");
}
