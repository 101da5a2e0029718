// Commands that change a job.

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "client/render/progress.h"

namespace cadre::client {
namespace {

int Show(const Context& context, const absl::StatusOr<v1::Job>& job) {
  if (!job.ok()) return context.Fail(job.status());
  if (context.json) {
    context.PrintJson(*job);
  } else {
    context.Print(
        absl::StrCat(JobId(job->name()), " ", StateName(job->state()), "\n"));
  }
  return kOk;
}

}  // namespace

int Cancel(const Context& context, const std::string& name,
           const std::string& reason) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  return Show(context, (*client)->Cancel(name, reason));
}

int Pause(const Context& context, const std::string& name,
          const std::string& reason) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  return Show(context, (*client)->Pause(name, reason));
}

int Resume(const Context& context, const ResumeArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  return Show(context, (*client)->Resume(args.job, args.reason, args.priority));
}

int Delete(const Context& context, const std::string& name,
           const std::string& reason, bool purge_artifacts) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  const absl::Status status = (*client)->Delete(name, reason, purge_artifacts);
  if (!status.ok()) return context.Fail(status);
  if (!context.json) {
    context.Print(absl::StrCat(JobId(JobName(name)), " deleted\n"));
  }
  return kOk;
}

int Purge(const Context& context, const PurgeArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  v1::PurgeJobsRequest request;
  request.set_filter(args.filter);
  request.set_reason(args.reason);
  request.set_force(args.force);
  request.set_purge_artifacts(args.artifacts);
  if (args.older_than_days > 0) {
    request.mutable_ended_before()->set_seconds(absl::ToUnixSeconds(
        absl::Now() - absl::Hours(24) * args.older_than_days));
  }
  // Without --force the first answer says it all.
  for (;;) {
    auto answer = (*client)->Purge(request);
    if (!answer.ok()) return context.Fail(answer.status());
    if (context.json) {
      context.PrintJson(*answer);
    } else {
      for (const std::string& name : answer->names()) {
        context.Print(absl::StrCat(JobId(name), "\n"));
      }
      for (const std::string& name : answer->in_use()) {
        context.Note(
            absl::StrCat(JobId(name), ": kept, another job starts from it\n"));
      }
    }
    if (args.force && answer->remaining() > 0 && answer->names_size() > 0) {
      continue;
    }
    if (!args.force) {
      context.Note(absl::StrCat(answer->names_size() + answer->remaining(),
                                " would be forgotten; --force does it\n"));
    } else if (answer->remaining() > 0) {
      context.Note(absl::StrCat(answer->remaining(), " more are left\n"));
    }
    return kOk;
  }
}

}  // namespace cadre::client
