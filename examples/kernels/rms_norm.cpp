// An operator in C++: x / rms(x) * weight, row by row, forward and backward, right (BUG = 0) and with planted bugs.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr double EPS = 1e-6;

// Bugs: 1 strides are ignored, 2 the tail of a row is left out of a sum, 3 the output is a buffer that is used
// again. A fourth is in the fake kernel, in Python.
template <int BUG>
at::Tensor forward(const at::Tensor& input, const at::Tensor& scale) {
  const at::Tensor x = BUG == 1 ? input : input.contiguous();
  const at::Tensor weight = scale.contiguous();
  const int64_t rows = x.size(0), size = x.size(1);
  static at::Tensor buffer;
  at::Tensor y = at::empty({rows, size}, x.options());
  if (BUG == 3) {
    if (!buffer.defined() || buffer.sizes() != y.sizes() || buffer.dtype() != y.dtype()) buffer = y;
    y = buffer;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rms_norm", [&] {
    using wide = at::opmath_type<scalar_t>;
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    const scalar_t* w = weight.const_data_ptr<scalar_t>();
    scalar_t* out = y.mutable_data_ptr<scalar_t>();
    for (int64_t row = 0; row < rows; ++row, in += size, out += size) {
      wide total = 0;
      for (int64_t i = 0; i < size; ++i) total += static_cast<wide>(in[i]) * in[i];
      const wide inverse = 1 / std::sqrt(total / size + static_cast<wide>(EPS));
      for (int64_t i = 0; i < size; ++i) out[i] = static_cast<scalar_t>(in[i] * inverse * w[i]);
    }
  });
  return y;
}

template <int BUG>
std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& cotangent, const at::Tensor& input,
                                            const at::Tensor& scale) {
  const at::Tensor g = cotangent.contiguous(), x = input.contiguous(), weight = scale.contiguous();
  const int64_t rows = x.size(0), size = x.size(1);
  const int64_t whole = BUG == 2 ? size / 8 * 8 : size;
  at::Tensor dx = at::empty({rows, size}, x.options()), dw = at::empty({size}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rms_norm_backward", [&] {
    using wide = at::opmath_type<scalar_t>;
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    const scalar_t* pulled = g.const_data_ptr<scalar_t>();
    const scalar_t* w = weight.const_data_ptr<scalar_t>();
    scalar_t* out = dx.mutable_data_ptr<scalar_t>();
    std::vector<wide> sums(size, 0);
    for (int64_t row = 0; row < rows; ++row, in += size, pulled += size, out += size) {
      wide total = 0, along = 0;
      for (int64_t i = 0; i < size; ++i) total += static_cast<wide>(in[i]) * in[i];
      for (int64_t i = 0; i < whole; ++i) along += static_cast<wide>(pulled[i]) * w[i] * in[i];
      const wide inverse = 1 / std::sqrt(total / size + static_cast<wide>(EPS));
      along *= inverse * inverse / size;
      for (int64_t i = 0; i < size; ++i) {
        const wide value = in[i], p = pulled[i];
        out[i] = static_cast<scalar_t>((p * w[i] - value * along) * inverse);
        sums[i] += p * value * inverse;
      }
    }
    scalar_t* gradient = dw.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < size; ++i) gradient[i] = static_cast<scalar_t>(sums[i]);
  });
  return {dx, dw};
}

template <int BUG>
void define(torch::Library& m) {
  const std::string name = "rms_norm_" + std::to_string(BUG);
  m.def((name + "(Tensor x, Tensor weight) -> Tensor").c_str());
  m.def((name + "_backward(Tensor g, Tensor x, Tensor weight) -> (Tensor, Tensor)").c_str());
  m.impl(name.c_str(), c10::kCPU, &forward<BUG>);
  m.impl((name + "_backward").c_str(), c10::kCPU, &backward<BUG>);
}

}  // namespace

TORCH_LIBRARY(covector_examples, m) {
  define<0>(m);
  define<1>(m);
  define<2>(m);
  define<3>(m);
  define<4>(m);
}
