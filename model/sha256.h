#ifndef CADRE_MODEL_SHA256_H_
#define CADRE_MODEL_SHA256_H_

// SHA-256 in steps. Move-only; one thread.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(absl::string_view bytes);
  // Lower-case hex; ends the computation.
  std::string HexDigest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cadre

#endif  // CADRE_MODEL_SHA256_H_
