// How the learning rate changes from step to step.
#pragma once

#include <cstdint>

namespace wf {

// All but kPaper as transformers' schedulers of those names, whose first step of a warm-up has the rate 0.
struct Schedule {
  enum class Kind : uint8_t {
    kConstant,     // the peak
    kLinear,       // from the peak straight to 0
    kCosine,       // from the peak to 0 by half a cosine (Loshchilov, Hutter 2017, "SGDR", eq. 5, one cycle)
    kInverseSqrt,  // the peak over the square root of steps, counted in warm-ups (10,000 steps without one)
    kPaper,        // D^-0.5 min(n^-0.5, n warmup^-1.5) (Vaswani et al. 2017, eq. 3)
  };

  Kind kind = Kind::kConstant;
  double peak = 3e-4;      // of all but kPaper
  uint32_t warmup = 0;     // steps of a straight rise
  uint32_t steps = 0;      // of the whole run: kLinear and kCosine end there
  double hidden_size = 0;  // D, of kPaper

  // The rate of step n, counted from 1.
  double at(uint32_t n) const;
};

}  // namespace wf
