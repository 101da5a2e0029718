// Softmax attention and the delta rule on the device against the CPU.

#include "kernels/attention/attention.h"
#include "kernels/cuda_test/twin.cuh"
#include "kernels/gdn/gdn.h"
#include "kernels/kda/kda.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/linear_attention/generic.h"

namespace cadre {
namespace {

using linear_attention::GenericInputs;
using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class AttentionCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(AttentionCuda);

struct Case {
  std::vector<int32_t> cu;
  int64_t padding, heads, kv_heads, qk, v;
  int64_t width = 0;  // of a selection; 0 = dense
};

const std::vector<Case> kCases = {
    {{0}, 0, 2, 1, 16, 16},
    {{0}, 5, 2, 2, 16, 16},
    {{0, 1}, 0, 1, 1, 2, 1},
    {{0, 1, 4, 4, 20}, 3, 4, 2, 6, 10},
    {{0, 63, 127, 192}, 0, 2, 2, 64, 64},
    {{0, 300}, 0, 2, 1, 128, 128},
    {{0, 17, 150, 151, 407}, 9, 3, 3, 192, 128},
    {{0, 129, 257}, 1, 4, 2, 256, 256},
    {{0, 17, 150, 151, 407}, 9, 2, 2, 24, 20, 33},
    {{0, 200, 330}, 0, 2, 1, 192, 128, 64},
};

// A pseudo-random ascending selection, rows without a key included.
void Select(const Case& c, std::vector<int32_t>& selected,
            std::vector<int32_t>& num_valid) {
  const int64_t tokens = c.cu.back() + c.padding;
  selected.assign(tokens * c.width, -1);
  num_valid.assign(tokens, 0);
  uint32_t state = 7;
  for (size_t doc = 0; doc + 1 < c.cu.size(); ++doc) {
    for (int32_t t = c.cu[doc]; t < c.cu[doc + 1]; ++t) {
      if (t % 29 == 11) continue;
      int32_t count = 0;
      for (int32_t s = 0; s <= t - c.cu[doc] && count < c.width; ++s) {
        state = state * 1664525 + 1013904223;
        if (state >> 30 != 0 || s == t - c.cu[doc])
          selected[t * c.width + count++] = s;
      }
      num_valid[t] = count;
    }
  }
}

TEST_P(AttentionCuda, ForwardAndBackward) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message()
                 << c.cu.back() << " tokens, widths " << c.qk << " and " << c.v
                 << ", selection " << c.width);
    Twins twins(GetParam());
    const int64_t tokens = c.cu.back() + c.padding;
    std::vector<int32_t> selected, num_valid;
    Select(c, selected, num_valid);
    Twin& q = twins.Act({tokens, c.heads, c.qk});
    Twin& k = twins.Act({tokens, c.kv_heads, c.qk});
    Twin& v = twins.Act({tokens, c.kv_heads, c.v});
    Twin& cu = twins.Table(c.cu);
    Twin& keys = twins.Table(selected, {tokens, c.width});
    Twin& valid = twins.Table(num_valid);
    Twin& o = twins.ActOut({tokens, c.heads, c.v});
    Twin& lse = twins.ParamOut({tokens, c.heads});
    Twin& d_o = twins.Act({tokens, c.heads, c.v});
    Twin& dq = twins.ActOut({tokens, c.heads, c.qk});
    Twin& dk = twins.ActOut({tokens, c.kv_heads, c.qk});
    Twin& dv = twins.ActOut({tokens, c.kv_heads, c.v});
    const double scale = 1 / std::sqrt(static_cast<double>(c.qk));
    auto optional = [&](const View& view, Twin& t) {
      return c.width > 0 ? view(t) : Tensor();
    };
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return AttentionForward(exec, {.q = view(q),
                                         .k = view(k),
                                         .v = view(v),
                                         .cu_seqlens = view(cu),
                                         .scale = scale,
                                         .selected = optional(view, keys),
                                         .num_valid = optional(view, valid),
                                         .o = view(o),
                                         .lse = view(lse)});
        },
        {&o, &lse});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return AttentionBackward(exec, {.q = view(q),
                                          .k = view(k),
                                          .v = view(v),
                                          .cu_seqlens = view(cu),
                                          .scale = scale,
                                          .selected = optional(view, keys),
                                          .num_valid = optional(view, valid),
                                          .o = view(o),
                                          .lse = view(lse),
                                          .d_o = view(d_o),
                                          .dq = view(dq),
                                          .dk = view(dk),
                                          .dv = view(dv)});
        },
        {&dq, &dk, &dv}, {.f32 = 5e-5, .bf16 = 1e-2});
  }
}

struct DeltaCase {
  std::vector<int32_t> cu;
  int64_t padding, heads, key_heads, k, v;
  bool bounded, states;
};

TEST_P(AttentionCuda, GenericDeltaRule) {
  const std::vector<DeltaCase> cases = {
      {{0}, 4, 2, 2, 8, 8, true, false},
      {{0, 3, 3, 70, 200}, 5, 2, 2, 12, 20, true, true},
      {{0, 65}, 0, 3, 3, 128, 128, false, true},
      {{0, 40, 41}, 0, 4, 2, 16, 8, false, true},  // GDN
      {{0, 129}, 2, 4, 4, 64, 40, false, false},   // GDN
      {{0, 66}, 0, 1, 1, 200, 72, true, true}};
  for (const DeltaCase& c : cases) {
    for (const bool kda : {true, false}) {
      if (kda && c.heads != c.key_heads) continue;
      SCOPED_TRACE(::testing::Message()
                   << (kda ? "KDA " : "GDN ") << c.k << " x " << c.v);
      Twins twins(GetParam());
      const int64_t tokens = c.cu.back() + c.padding;
      const int64_t docs = static_cast<int64_t>(c.cu.size()) - 1;
      const double unit = 1 / std::sqrt(static_cast<double>(c.k));
      Twin& q = twins.Act({tokens, c.key_heads, c.k}, unit);
      Twin& k = twins.Act({tokens, c.key_heads, c.k}, unit);
      Twin& v = twins.Act({tokens, c.heads, c.v});
      Twin& z = twins.Act({tokens, c.heads, c.k}, 1, -2);
      Twin& a = twins.Param({tokens, c.heads}, 1, -2);
      Twin& beta = twins.Param({tokens, c.heads});
      Twin& a_log = twins.Param({c.heads}, 0.3);
      Twin& dt_bias = twins.Param({kda ? c.heads * c.k : c.heads}, 0.3);
      Twin& cu = twins.Table(c.cu);
      Twin& initial = twins.Param({docs, c.heads, c.k, c.v});
      Twin& o = twins.ActOut({tokens, c.heads, c.v});
      Twin& last = twins.ParamOut({docs, c.heads, c.k, c.v});
      Twin& d_o = twins.Act({tokens, c.heads, c.v});
      Twin& d_last = twins.Param({docs, c.heads, c.k, c.v});
      Twin& dq = twins.ActOut({tokens, c.key_heads, c.k});
      Twin& dk = twins.ActOut({tokens, c.key_heads, c.k});
      Twin& dv = twins.ActOut({tokens, c.heads, c.v});
      Twin& dz = twins.ActOut({tokens, c.heads, c.k});
      Twin& da = twins.ParamOut({tokens, c.heads});
      Twin& dbeta = twins.ParamOut({tokens, c.heads});
      Twin& da_log = twins.Param({c.heads});
      Twin& ddt_bias = twins.Param({kda ? c.heads * c.k : c.heads});
      Twin& d_initial = twins.ParamOut({docs, c.heads, c.k, c.v});
      Twin& space = twins.ParamOut(
          {linear_attention::GenericBackwardBytes(tokens, c.heads, c.k) / 4});
      const bool bounded = kda && c.bounded;
      auto optional = [&](const View& view, Twin& t, bool wanted) {
        return wanted ? view(t) : Tensor();
      };
      auto op = [&](const Exec& exec, const View& view,
                    bool backward) -> absl::Status {
        const Tensor start = optional(view, initial, c.states);
        if (exec.backend == Backend::kCuda) {
          const GenericInputs in = {.q = view(q),
                                    .k = view(k),
                                    .v = view(v),
                                    .z = optional(view, z, kda),
                                    .a = optional(view, a, !kda),
                                    .beta = view(beta),
                                    .a_log = view(a_log),
                                    .dt_bias = view(dt_bias),
                                    .cu_seqlens = view(cu),
                                    .initial_state = start,
                                    .bounded = bounded,
                                    .bound = -5};
          if (!backward) {
            return linear_attention::GenericForward("delta", exec, in, view(o),
                                                    view(last));
          }
          return linear_attention::GenericBackward(
              "delta", exec, in,
              {.d_o = view(d_o),
               .d_final_state = optional(view, d_last, c.states),
               .dq = view(dq),
               .dk = view(dk),
               .dv = view(dv),
               .dz = optional(view, dz, kda),
               .da = optional(view, da, !kda),
               .dbeta = view(dbeta),
               .da_log = view(da_log),
               .ddt_bias = view(ddt_bias),
               .d_initial_state = view(d_initial)},
              view(space));
        }
        if (kda) {
          KdaInputs in = {.q = view(q),
                          .k = view(k),
                          .v = view(v),
                          .z = view(z),
                          .beta = view(beta),
                          .a_log = view(a_log),
                          .dt_bias = view(dt_bias),
                          .cu_seqlens = view(cu),
                          .initial_state = start};
          if (bounded) in.lower_bound = -5;
          if (!backward) {
            return KdaForward(
                exec, {.in = in, .o = view(o), .final_state = view(last)});
          }
          return KdaBackward(exec,
                             {.in = in,
                              .d_o = view(d_o),
                              .d_final_state = optional(view, d_last, c.states),
                              .dq = view(dq),
                              .dk = view(dk),
                              .dv = view(dv),
                              .dz = view(dz),
                              .dbeta = view(dbeta),
                              .da_log = view(da_log),
                              .ddt_bias = view(ddt_bias),
                              .d_initial_state = view(d_initial)});
        }
        const GdnInputs in = {.q = view(q),
                              .k = view(k),
                              .v = view(v),
                              .a = view(a),
                              .beta = view(beta),
                              .a_log = view(a_log),
                              .dt_bias = view(dt_bias),
                              .cu_seqlens = view(cu),
                              .initial_state = start};
        if (!backward) {
          return GdnForward(
              exec, {.in = in, .o = view(o), .final_state = view(last)});
        }
        return GdnBackward(exec,
                           {.in = in,
                            .d_o = view(d_o),
                            .d_final_state = optional(view, d_last, c.states),
                            .dq = view(dq),
                            .dk = view(dk),
                            .dv = view(dv),
                            .da = view(da),
                            .dbeta = view(dbeta),
                            .da_log = view(da_log),
                            .ddt_bias = view(ddt_bias),
                            .d_initial_state = view(d_initial)});
      };
      twins.Check([&](const Exec& exec,
                      const View& view) { return op(exec, view, false); },
                  {&o, &last}, {.f32 = 5e-5});
      twins.Check([&](const Exec& exec,
                      const View& view) { return op(exec, view, true); },
                  {&dq, &dk, &dv, kda ? &dz : &da, &dbeta, &da_log, &ddt_bias,
                   &d_initial},
                  {.f32 = 1e-4, .bf16 = 8e-3});
    }
  }
}

}  // namespace
}  // namespace cadre
