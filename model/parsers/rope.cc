#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

constexpr double kBig = 1e18;

// The rotary settings: rope_parameters, or in older files rope_scaling.
JsonConfig RopeDict(JsonConfig& config) {
  JsonConfig parameters = config.Object("rope_parameters");
  JsonConfig scaling = config.Object("rope_scaling");
  return parameters.present() ? parameters : scaling;
}

// A number that may stand at top level, in rope_parameters and in rope_scaling.
std::optional<double> ReadEverywhere(JsonConfig& config, const char* name) {
  std::optional<double> value;
  JsonConfig parameters = config.Object("rope_parameters");
  JsonConfig scaling = config.Object("rope_scaling");
  for (JsonConfig* place : {&config, &parameters, &scaling}) {
    const std::optional<double> found =
        place->OptionalNumber({name}, 0.0, kBig);
    if (!found) continue;
    if (value && *value != *found) {
      place->Error(name, absl::StrCat("is ", *found, " here and ", *value,
                                      " elsewhere in the config"));
    }
    value = found;
  }
  return value;
}

double YarnMscale(double factor, double mu) {
  return factor > 1.0 ? 0.1 * mu * std::log(factor) + 1.0 : 1.0;
}

void CheckRopeFields(JsonConfig rope, bool mrope) {
  rope.Ignore({"rope_theta", "rope_type", "type", "partial_rotary_factor",
               "factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow",
               "original_max_position_embeddings", "attention_factor",
               "truncate"});
  if (mrope) {
    // The three position ids of a text token are equal.
    rope.Ignore({"mrope_section", "mrope_interleaved"});
  }
  rope.WarnAboutUnused();
}

}  // namespace

RopeSpec ReadRope(JsonConfig& config, const RopeOptions& options) {
  RopeSpec rope;
  rope.interleaved = options.interleaved;
  JsonConfig dict = RopeDict(config);
  JsonConfig scaling = config.Object("rope_scaling");
  rope.theta = ReadEverywhere(config, "rope_theta").value_or(10000.0);
  if (rope.theta <= 1.0) config.Error("rope_theta", "must exceed 1");
  const double partial = ReadEverywhere(config, "partial_rotary_factor")
                             .value_or(options.partial.value_or(1.0));
  if (!options.partial && partial != 1.0) {
    config.Error(
        "partial_rotary_factor",
        absl::StrCat("is ", partial, "; this model type rotates whole heads"));
  } else if (partial <= 0.0 || partial > 1.0) {
    config.Error("partial_rotary_factor", "must be above 0 and at most 1");
  }
  rope.dim = options.partial
                 ? static_cast<int64_t>(static_cast<double>(options.dim) *
                                        std::min(partial, 1.0))
                 : options.dim;
  if (rope.dim < 2 || rope.dim % 2 != 0) {
    config.Error("rope", absl::StrCat("would rotate ", rope.dim,
                                      " dims of a head; the number must be "
                                      "even and not 0"));
  }
  const std::string type = dict.String({"rope_type", "type"}, "default");
  if (scaling.present() && dict.Has("rope_type")) {
    const std::string old = scaling.String({"rope_type", "type"}, type);
    if (old != type) {
      scaling.Error("type",
                    absl::StrCat("is \"", old, "\", rope_parameters says \"",
                                 type, "\""));
    }
  }
  // A number stated in both dicts must be the same.
  for (const char* name :
       {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "attention_factor"}) {
    ReadEverywhere(config, name);
  }
  CheckRopeFields(config.Object("rope_parameters"), options.mrope);
  CheckRopeFields(config.Object("rope_scaling"), options.mrope);
  if (type == "default") return rope;
  if (type != "yarn") {
    dict.Error("rope_type", absl::StrCat("is \"", type,
                                         "\"; supported are default and yarn"));
    return rope;
  }

  rope.type = RopeSpec::Type::kYarn;
  const double positions = config.Number(
      {"max_position_embeddings", "model_max_length"}, 0.0, 0.0, kBig);
  double original =
      dict.Number({"original_max_position_embeddings"}, positions, 0.0, kBig);
  original =
      config.Number({"original_max_position_embeddings"}, original, 0.0, kBig);
  if (original < 1.0) {
    dict.Error("original_max_position_embeddings",
               "is missing and so is max_position_embeddings; yarn needs one");
    original = 1.0;
  }
  rope.yarn_original_max_positions = original;
  rope.yarn_factor = dict.Number({"factor"}, positions / original, 0.0, 1e9);
  if (rope.yarn_factor <= 0.0) {
    dict.Error("factor", "must be above 0");
    rope.yarn_factor = 1.0;
  }
  rope.yarn_beta_fast = dict.Number({"beta_fast"}, 32.0, 1e-6, 1e9);
  rope.yarn_beta_slow = dict.Number({"beta_slow"}, 1.0, 1e-6, 1e9);
  rope.yarn_truncate = dict.Bool({"truncate"}, true);
  const double mscale = dict.Number({"mscale"}, 0.0, 0.0, 1e3);
  const double mscale_all = dict.Number({"mscale_all_dim"}, 0.0, 0.0, 1e3);
  const std::optional<double> given =
      dict.OptionalNumber({"attention_factor"}, 1e-6, 1e6);
  if (given) {
    rope.attention_factor = *given;
  } else if (mscale != 0.0 && mscale_all != 0.0) {
    rope.attention_factor = YarnMscale(rope.yarn_factor, mscale) /
                            YarnMscale(rope.yarn_factor, mscale_all);
  } else {
    rope.attention_factor = YarnMscale(rope.yarn_factor, 1.0);
  }
  return rope;
}

double MlaSoftmaxScale(JsonConfig& config, const MlaSpec& mla) {
  double scale =
      1.0 / std::sqrt(static_cast<double>(mla.qk_nope_dim + mla.qk_rope_dim));
  if (mla.rope && mla.rope->type != RopeSpec::Type::kDefault) {
    const double mscale_all =
        RopeDict(config).Number({"mscale_all_dim"}, 0.0, 0.0, 1e3);
    if (mscale_all != 0.0) {
      const double factor = YarnMscale(mla.rope->yarn_factor, mscale_all);
      scale *= factor * factor;
    }
  }
  return scale;
}

}  // namespace cadre
