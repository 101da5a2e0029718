// Commands that change a job.

#include "absl/strings/str_cat.h"
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
           const std::string& reason) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  const absl::Status status = (*client)->Delete(name, reason);
  if (!status.ok()) return context.Fail(status);
  if (!context.json) {
    context.Print(absl::StrCat(JobId(JobName(name)), " deleted\n"));
  }
  return kOk;
}

}  // namespace cadre::client
