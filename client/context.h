#ifndef CADRE_CLIENT_CONTEXT_H_
#define CADRE_CLIENT_CONTEXT_H_

// What every command shares: the global options, the terminal, where output
// goes. One per process, passed in.

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/job_client.h"
#include "client/render/terminal.h"

namespace cadre::client {

struct Context {
  std::string address;
  std::string ca_file, certificate_file, key_file, token_file;
  absl::Duration timeout = absl::Seconds(10);
  bool json = false;
  bool quiet = false;
  Terminal terminal;

  JobClientOptions client_options() const {
    return {.address = address,
            .ca_file = ca_file,
            .certificate_file = certificate_file,
            .key_file = key_file,
            .token_file = token_file,
            .timeout = timeout};
  }

  // To stdout.
  void Print(absl::string_view text) const;
  // One JSON object on one line, to stdout.
  void PrintJson(const google::protobuf::Message& message) const;
  // To stderr, unless --quiet.
  void Note(absl::string_view text) const;
  // The error to stderr, with its findings placed in the job file where there
  // is one; returns the exit code.
  int Fail(const absl::Status& status, absl::string_view job_file = "",
           absl::string_view job_text = "") const;
};

// Protobuf JSON with the field names of the proto files.
std::string ToJson(const google::protobuf::Message& message);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_CONTEXT_H_
