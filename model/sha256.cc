#include "model/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "base/logging.h"

namespace cadre {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  CADRE_CHECK(state_->context != nullptr) << "out of memory";
  CADRE_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(absl::string_view bytes) {
  CADRE_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) ==
              1);
}

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CADRE_CHECK(EVP_DigestFinal_ex(state_->context, digest, &size) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace cadre
