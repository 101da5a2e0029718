#include "coordinator/access_list.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"

namespace cadre::coordinator {
namespace {

Role ToRole(config::v1::AccessList::Role role) {
  switch (role) {
    case config::v1::AccessList::ROLE_VIEWER:
      return Role::kViewer;
    case config::v1::AccessList::ROLE_SUBMITTER:
      return Role::kSubmitter;
    case config::v1::AccessList::ROLE_ADMIN:
      return Role::kAdmin;
    case config::v1::AccessList::ROLE_WORKER:
      return Role::kWorker;
    default:
      return Role::kNone;
  }
}

absl::Status Bad(const char* kind, const std::string& name,
                 const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("access list, ", kind, " '", name, "': ", what));
}

std::string Digest(absl::string_view token) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

}  // namespace

absl::StatusOr<AccessList> AccessList::Make(
    const config::v1::AccessList& config) {
  AccessList list;
  std::set<std::string> seen;
  for (const auto& token : config.tokens()) {
    Entry entry{.name = token.name(), .role = ToRole(token.role())};
    if (entry.name.empty()) return Bad("token", "", "it has no name");
    if (entry.role == Role::kNone) {
      return Bad("token", entry.name, "it has no role");
    }
    const bool hex =
        std::all_of(token.sha256().begin(), token.sha256().end(),
                    [](unsigned char c) { return absl::ascii_isxdigit(c); });
    if (token.sha256().size() != 2 * SHA256_DIGEST_LENGTH || !hex) {
      return Bad("token", entry.name,
                 "sha256 must be 64 hexadecimal digits: printf %s \"$TOKEN\" | "
                 "sha256sum");
    }
    entry.digest = absl::HexStringToBytes(token.sha256());
    if (!seen.insert(entry.name).second || !seen.insert(entry.digest).second) {
      return Bad("token", entry.name, "its name or its digest comes twice");
    }
    list.tokens_.push_back(std::move(entry));
  }
  for (const auto& certificate : config.certificates()) {
    Entry entry{.name = certificate.san(), .role = ToRole(certificate.role())};
    if (entry.name.empty()) return Bad("certificate", "", "it has no san");
    if (entry.role == Role::kNone) {
      return Bad("certificate", entry.name, "it has no role");
    }
    list.certificates_.push_back(std::move(entry));
  }
  return list;
}

std::optional<Caller> AccessList::ByToken(absl::string_view token) const {
  const std::string digest = Digest(token);
  std::optional<Caller> found;
  // All of them, so that the time tells nothing.
  for (const Entry& entry : tokens_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) {
      found = Caller{.principal = entry.name, .role = entry.role};
    }
  }
  return found;
}

std::optional<Caller> AccessList::ByNames(
    const std::vector<std::string>& names) const {
  for (const Entry& entry : certificates_) {
    for (const std::string& name : names) {
      if (!NameMatches(entry.name, name)) continue;
      // The certificate's own name: a wildcard must not let one host speak for
      // another.
      return Caller{.principal = name, .role = entry.role};
    }
  }
  return std::nullopt;
}

bool NameMatches(absl::string_view pattern, absl::string_view name) {
  if (!absl::StartsWith(pattern, "*.")) return pattern == name;
  const absl::string_view suffix = pattern.substr(1);
  return absl::EndsWith(name, suffix) && name.size() > suffix.size();
}

absl::Status CheckWorkerId(const Caller& caller, const std::string& worker_id) {
  if (caller.role != Role::kWorker) return absl::OkStatus();
  // "{host}.{index}".
  const size_t dot = worker_id.rfind('.');
  if (dot != std::string::npos &&
      NameMatches(caller.principal, worker_id.substr(0, dot))) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kPermissionDenied, "WORKER_ID_MISMATCH",
               absl::StrCat("worker_id '", worker_id, "' is not of the form ",
                            caller.principal,
                            ".INDEX, as the caller's certificate or token "
                            "wants it"));
}

}  // namespace cadre::coordinator
