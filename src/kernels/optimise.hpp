// What an optimiser does to one tensor: a step of Adam, and the measure of its gradient.
#pragma once

#include <cstddef>

namespace wf::kernels {

// The numbers of one step of AdamW (Loshchilov and Hutter 2019) or Adam (Kingma and Ba 2015).
struct AdamStep {
  double learning_rate;
  double beta1, beta2;
  double epsilon;
  double weight_decay;
  double correction1, correction2;  // 1 - beta1^step and 1 - beta2^step, step from 1
  double scale = 1;                 // of the gradient as it is stored: one over the number of labels, times what clipping leaves
  bool coupled = false;             // Adam's decay, added to the gradient (L2), instead of AdamW's, which is of the weights alone
};

// p (n), its gradient g (n) and the moments m, v (n), zeros before the first step; in the order of operations of torch.optim.AdamW.
// Each element is on its own: any partition gives the same bits.
void adamw(float* p, const float* g, float* m, float* v, size_t n, const AdamStep& step);

// Sum of g^2 in double. It is finite exactly when all of g is.
double sum_of_squares(const float* g, size_t n);

// The first element that is NaN or infinite; n when there is none.
size_t first_not_finite(const float* x, size_t n);

}  // namespace wf::kernels
