// Commands for operators: workers, backup, audit.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "client/render/progress.h"
#include "client/render/table.h"

namespace cadre::client {
namespace {

std::string Id(const v1::Worker& worker) {
  return worker.name().substr(worker.name().find('/') + 1);
}

std::string AdminStateName(const v1::Worker& worker) {
  return v1::Worker::AdminState_Name(worker.admin_state()).substr(12);
}

std::string Age(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return FormatSeconds(
      static_cast<double>(absl::ToUnixSeconds(absl::Now()) - time.seconds()));
}

int Show(const Context& context, const absl::StatusOr<v1::Worker>& worker) {
  if (!worker.ok()) return context.Fail(worker.status());
  if (context.json) {
    context.PrintJson(*worker);
  } else {
    context.Print(
        absl::StrCat(Id(*worker), " ", AdminStateName(*worker), "\n"));
  }
  return kOk;
}

}  // namespace

int Workers(const Context& context, const std::string& filter) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto workers = (*client)->ListWorkers(filter);
  if (!workers.ok()) return context.Fail(workers.status());
  Table table(
      {"WORKER", "STATE", "MAY WORK", "DEVICE", "MEMORY", "LAST SYNC", "JOB"});
  for (const v1::Worker& worker : *workers) {
    if (context.json) {
      context.PrintJson(worker);
      continue;
    }
    std::string job = worker.job().empty() ? "-" : JobId(worker.job());
    if (worker.rank() >= 0 && !worker.job().empty()) {
      absl::StrAppend(&job, " rank ", worker.rank());
    }
    if (!worker.reason().empty()) absl::StrAppend(&job, "; ", worker.reason());
    table.Add(
        {Id(worker), v1::Worker::State_Name(worker.state()).substr(6),
         AdminStateName(worker),
         absl::StrCat(worker.device().backend(), " ", worker.device().name()),
         absl::StrFormat(
             "%.0f GiB",
             static_cast<double>(worker.device().memory_bytes()) / (1 << 30)),
         Age(worker.last_sync_time()), job});
  }
  if (!context.json) {
    context.Print(
        table.Render(context.terminal.is_tty ? context.terminal.width : 0));
    if (workers->empty()) {
      context.Note("no worker has registered; start cadre-worker\n");
    }
  }
  return kOk;
}

int Cordon(const Context& context, const std::string& worker,
           const std::string& reason) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  return Show(context, (*client)->Cordon(worker, reason));
}

int Uncordon(const Context& context, const std::string& worker,
             const std::string& reason) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  return Show(context, (*client)->Uncordon(worker, reason));
}

int Drain(const Context& context, const DrainArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  v1::DrainRequest request;
  request.set_name(args.worker);
  request.set_reason(args.reason);
  request.set_mode(args.at_checkpoint ? v1::DrainRequest::MODE_AT_CHECKPOINT
                                      : v1::DrainRequest::MODE_NOW);
  request.mutable_deadline()->set_seconds(
      static_cast<int64_t>(args.deadline_seconds));
  auto worker = (*client)->Drain(request);
  while (args.wait && worker.ok() && !worker->job().empty()) {
    absl::SleepFor(absl::Seconds(1));
    auto workers = (*client)->ListWorkers();
    if (!workers.ok()) return context.Fail(workers.status());
    for (const v1::Worker& other : *workers) {
      if (other.name() != worker->name()) continue;
      *worker = other;
      break;
    }
  }
  return Show(context, worker);
}

int Backup(const Context& context, const std::string& path) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto backup = (*client)->Backup(path);
  if (!backup.ok()) return context.Fail(backup.status());
  if (context.json) {
    context.PrintJson(*backup);
  } else {
    context.Print(
        absl::StrCat(backup->path(), " (", backup->bytes(), " bytes)\n"));
  }
  return kOk;
}

int Audit(const Context& context, int limit) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto records = (*client)->ListAudit(limit);
  if (!records.ok()) return context.Fail(records.status());
  Table table({"TIME", "WHO", "FROM", "DID", "TO", "OUTCOME"});
  for (const v1::AuditRecord& record : *records) {
    if (context.json) {
      context.PrintJson(record);
      continue;
    }
    table.Add({absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                                absl::FromUnixSeconds(record.time().seconds()),
                                absl::UTCTimeZone()),
               record.principal().empty() ? "-" : record.principal(),
               record.peer(), record.method(), record.target(),
               record.outcome()});
  }
  if (!context.json) {
    context.Print(
        table.Render(context.terminal.is_tty ? context.terminal.width : 0));
  }
  return kOk;
}

}  // namespace cadre::client
