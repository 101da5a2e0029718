// cadre artifacts get: a result or a checkpoint, file by file.

#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "model/sha256.h"

namespace cadre::client {
namespace {

namespace fs = std::filesystem;
using Listing = v1::DownloadArtifactResponse::Listing;

absl::Status Failed(const std::string& what, const std::string& path,
                    const std::error_code& error) {
  return absl::InternalError(
      absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

// Adds what is on disk; the number of bytes.
absl::StatusOr<int64_t> Digest(const std::string& path, Sha256* sha) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return int64_t{0};
  std::vector<char> buffer(1 << 20);
  int64_t bytes = 0;
  while (in.read(buffer.data(), static_cast<int64_t>(buffer.size())) ||
         in.gcount() > 0) {
    sha->Update(absl::string_view(buffer.data(), in.gcount()));
    bytes += in.gcount();
  }
  if (in.bad()) {
    return absl::InternalError(absl::StrCat("cannot read ", path));
  }
  return bytes;
}

absl::StatusOr<bool> IsThere(const std::string& path,
                             const v1::SavedFile& file) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error || static_cast<int64_t>(size) != file.bytes()) return false;
  Sha256 sha;
  CADRE_RETURN_IF_ERROR(Digest(path, &sha).status());
  return sha.HexDigest() == file.sha256();
}

// Into "FILE.part", which a later call goes on with, then under its name.
absl::Status Fetch(JobClient* client, const std::string& name,
                   const v1::SavedFile& file, const std::string& path) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return Failed("make the folder of", path, error);
  const std::string part = path + ".part";
  Sha256 sha;
  CADRE_ASSIGN_OR_RETURN(int64_t have, Digest(part, &sha));
  if (have > file.bytes()) {
    fs::remove(part, error);
    sha = Sha256();
    have = 0;
  }
  std::ofstream out(part, std::ios::binary | std::ios::app);
  if (!out) {
    return absl::PermissionDeniedError(absl::StrCat("cannot write ", part));
  }
  CADRE_RETURN_IF_ERROR(
      client
          ->Download({.name = name,
                      .file = file.path(),
                      .offset = have,
                      .on_data = [&](const std::string& data) -> absl::Status {
                        sha.Update(data);
                        out << data;
                        return out ? absl::OkStatus()
                                   : absl::ResourceExhaustedError(
                                         absl::StrCat("cannot write ", part,
                                                      ": is the disk full?"));
                      }})
          .status());
  out.close();
  if (!out) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", part, ": is the disk full?"));
  }
  const std::string digest = sha.HexDigest();
  if (digest != file.sha256()) {
    fs::remove(part, error);
    return absl::DataLossError(absl::StrCat(
        file.path(), " of ", name, " arrived with SHA-256 ", digest, ", not ",
        file.sha256(), "; the part on disk is removed, try again"));
  }
  fs::rename(part, path, error);
  if (error) return Failed("name", path, error);
  return absl::OkStatus();
}

// The whole name of what is asked for.
absl::StatusOr<std::string> Choose(JobClient* client,
                                   const DownloadArgs& args) {
  const std::string job = JobName(args.job);
  if (args.checkpoint >= 0) {
    return absl::StrCat(job, "/checkpoints/", args.checkpoint);
  }
  if (!args.artifact.empty()) {
    return absl::StrCat(job, "/artifacts/", args.artifact);
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<v1::Artifact> artifacts,
                         client->ListArtifacts(args.job));
  if (artifacts.empty()) {
    return absl::NotFoundError(absl::StrCat(
        args.job, " has no result yet; --checkpoint STEP gets a checkpoint"));
  }
  return artifacts[0].name();
}

absl::Status Run(const Context& context, const DownloadArgs& args) {
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<JobClient> client,
                         JobClient::Connect(context.client_options()));
  CADRE_ASSIGN_OR_RETURN(const std::string name, Choose(client.get(), args));
  CADRE_ASSIGN_OR_RETURN(
      const Listing listing,
      client->Download({.name = name, .path_only = args.path_only}));
  if (args.path_only) {
    if (context.json) {
      context.PrintJson(listing);
    } else {
      context.Print(absl::StrCat(listing.storage_path(), "\n"));
    }
    return absl::OkStatus();
  }
  int64_t bytes = 0;
  for (const v1::SavedFile& file : listing.files()) {
    const std::string path = absl::StrCat(args.dir, "/", file.path());
    CADRE_ASSIGN_OR_RETURN(const bool there, IsThere(path, file));
    context.Note(absl::StrFormat("%s, %d bytes%s\n", file.path(), file.bytes(),
                                 there ? ": there already" : ""));
    if (!there) {
      CADRE_RETURN_IF_ERROR(Fetch(client.get(), name, file, path));
    }
    bytes += file.bytes();
  }
  if (context.json) {
    context.PrintJson(listing);
  } else {
    context.Print(absl::StrFormat("%s: %d files, %d bytes in %s\n", name,
                                  listing.files_size(), bytes, args.dir));
  }
  return absl::OkStatus();
}

}  // namespace

int Download(const Context& context, const DownloadArgs& args) {
  const absl::Status status = Run(context, args);
  return status.ok() ? kOk : context.Fail(status);
}

}  // namespace cadre::client
