#include "client/command_table.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "client/exit_codes.h"

namespace cadre::client {
namespace {

void AddJobCommands(CommandArguments* args, Commands* commands) {
  CLI::App* c = commands->Add(
      "submit", "Submit a job file",
      [args](const Context& x) { return Submit(x, args->submit); });
  c->add_option("file", args->submit.file, "Job file (YAML)")->required();
  c->add_flag("--wait,--watch", args->submit.wait,
              "Follow the job; exit 0 only if it succeeds");
  c->add_option("--request-id", args->submit.request_id,
                "UUID; the same id never creates a second job");
  c->add_option("--set", args->submit.set,
                "field=value over the file, repeatable");

  c = commands->Add(
      "validate", "Check a job file without submitting it",
      [args](const Context& x) { return Validate(x, args->validate); });
  c->add_option("file", args->validate.file, "Job file (YAML)")->required();
  c->add_option("--set", args->validate.set,
                "field=value over the file, repeatable");
  c->add_flag("--local", args->validate.local, "Without a coordinator");

  c = commands->Add(
      "plan", "What would become of a job file, without submitting it",
      [args](const Context& x) { return PlanFile(x, args->plan); });
  c->add_option("file", args->plan.file, "Job file (YAML)")->required();
  c->add_option("--set", args->plan.set,
                "field=value over the file, repeatable");
  CLI::Option* workers =
      c->add_option("--workers", args->plan.workers,
                    "Plan for so many workers that need not exist; without "
                    "it for the registered ones")
          ->check(CLI::Range(1, 1024));
  c->add_option("--device-memory", args->plan.device_memory,
                "Of each of them, as 80GiB")
      ->transform(CLI::AsSizeValue(true))
      ->needs(workers);
  c->add_option("--link-domain", args->plan.link_domain,
                "So many of them reach each other over fast links")
      ->check(CLI::PositiveNumber)
      ->needs(workers);
  c->add_option("--candidates", args->plan.candidates,
                "Layouts to show, up to 32")
      ->check(CLI::Range(0, 32))
      ->capture_default_str();
  c->add_flag("--sample", args->plan.sample,
              "Check the head of the data files, too");

  c = commands->Add("list", "Jobs, newest first",
                    [args](const Context& x) { return List(x, args->list); });
  c->add_option("--filter", args->list.filter, "For example: state = FAILED");
  c->add_option("--order-by", args->list.order_by,
                "create_time, priority or name, each with desc for the "
                "highest first; several with commas");
  c->add_flag("--all", args->list.all, "Ended jobs too");
  c->add_option("--limit", args->list.limit, "At most this many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();

  const auto add_one = [&](const char* name, const char* help, RunCommand run) {
    CLI::App* command = commands->Add(name, help, std::move(run));
    command->add_option("job", args->job, "Job id")->required();
    return command;
  };
  add_one("get", "One job in full",
          [args](const Context& x) { return Get(x, args->job); });
  add_one("watch", "Follow a job; Ctrl-C detaches",
          [args](const Context& x) { return Watch(x, args->job); });
  add_one("events", "All events of a job",
          [args](const Context& x) { return Events(x, args->job); });
  add_one(
      "cancel", "End a job; its checkpoints stay",
      [args](const Context& x) { return Cancel(x, args->job, args->reason); })
      ->add_option("--reason", args->reason, "Kept in the event");
  add_one(
      "pause", "Give the workers back, after a save; resume goes on from it",
      [args](const Context& x) { return Pause(x, args->job, args->reason); })
      ->add_option("--reason", args->reason, "Kept in the event");
  c = add_one("resume", "Queue a paused job again", [args](const Context& x) {
    args->resume.job = args->job;
    args->resume.reason = args->reason;
    return Resume(x, args->resume);
  });
  c->add_option("--reason", args->reason, "Kept in the event");
  c->add_option("--priority", args->resume.priority, "New priority")
      ->check(CLI::Range(0, 100));
  c = add_one("delete", "Forget an ended job; its files stay",
              [args](const Context& x) {
                return Delete(x, args->job, args->reason,
                              args->purge_artifacts);
              });
  c->add_option("--reason", args->reason, "Kept in the log");
  c->add_flag("--purge", args->purge_artifacts,
              "Remove its checkpoints and its results, too");
}

void AddListCommands(CommandArguments* args, Commands* commands) {
  const auto add_one = [&](const char* name, const char* help, RunCommand run) {
    CLI::App* command = commands->Add(name, help, std::move(run));
    command->add_option("job", args->job, "Job id")->required();
    return command;
  };
  add_one("layout", "The layout a job runs with",
          [args](const Context& x) { return Plan(x, args->job); });
  add_one("checkpoints", "Committed checkpoints of a job, newest first",
          [args](const Context& x) { return Checkpoints(x, args->job); });
  CLI::App* artifacts = commands->Add(
      "artifacts", "Results of a job, and their files",
      [args](const Context& x) {
        if (!args->job.empty()) return Artifacts(x, args->job);
        x.Note("artifacts needs a job id, or: artifacts get JOB DIR\n");
        return static_cast<int>(kUsage);
      });
  artifacts->add_option("job", args->job, "Job id");
  CLI::App* get = commands->Add(
      artifacts, "get",
      "Download a result or a checkpoint; goes on where an "
      "earlier call ended, and checks every SHA-256",
      [args](const Context& x) { return Download(x, args->download); });
  get->add_option("job", args->download.job, "Job id")->required();
  get->add_option("dir", args->download.dir, "Folder to write to")
      ->default_str(".");
  CLI::Option* step = get->add_option("--checkpoint", args->download.checkpoint,
                                      "The checkpoint of this step");
  get->add_option("--artifact", args->download.artifact,
                  "The result of this name; by default the first")
      ->excludes(step);
  get->add_flag("--path-only", args->download.path_only,
                "Only say where it lies");
  CLI::App* c = add_one("series", "Loss and other values over the steps",
                        [args](const Context& x) {
                          args->series.job = args->job;
                          return Series(x, args->series);
                        });
  c->add_option("names", args->series.names, "Series wanted; all by default");
  c->add_option("--from", args->series.from, "First step");
  c->add_option("--to", args->series.to, "Last step");
  c->add_option("--max-points", args->series.max_points, "Up to 5000 a series");
  c = add_one("experts", "Tokens per expert of a job",
              [args](const Context& x) {
                args->experts.job = args->job;
                return Experts(x, args->experts);
              });
  c->add_flag("--cumulative", args->experts.cumulative,
              "All steps, not the newest ones only");
  c->add_option("--layers", args->experts.layers, "These layers only")
      ->delimiter(',');
  c->add_flag("--slots", args->experts.slots,
              "Which experts lie on which rank, too");
  c = add_one(
      "rebalance",
      "Move the experts of a running job to where their loads want them",
      [args](const Context& x) {
        args->rebalance.job = args->job;
        return Rebalance(x, args->rebalance);
      });
  c->add_flag("--wait", args->rebalance.wait,
              "Until the ranks have taken it over");
}

void AddOperatorCommands(CommandArguments* args, Commands* commands) {
  CLI::App* c = commands->Add(
      "workers", "Registered workers",
      [args](const Context& x) { return Workers(x, args->filter); });
  c->add_option("--filter", args->filter, "For example: state = IDLE");
  const auto add_one = [&](const char* name, const char* help, RunCommand run) {
    CLI::App* command = commands->Add(name, help, std::move(run));
    command->add_option("worker", args->worker, "Worker id")->required();
    command->add_option("--reason", args->reason, "Shown with the worker");
    return command;
  };
  add_one("cordon", "Give a worker no new job", [args](const Context& x) {
    return Cordon(x, args->worker, args->reason);
  });
  add_one("uncordon", "Undo cordon and drain", [args](const Context& x) {
    return Uncordon(x, args->worker, args->reason);
  });
  c = add_one("drain", "Cordon a worker and move its job to others",
              [args](const Context& x) {
                args->drain.worker = args->worker;
                args->drain.reason = args->reason;
                return Drain(x, args->drain);
              });
  c->add_flag("--at-checkpoint", args->drain.at_checkpoint,
              "Wait for the next periodic save");
  c->add_option("--deadline", args->drain.deadline_seconds,
                "Seconds to wait for that save")
      ->check(CLI::PositiveNumber);
  c->add_flag("--wait", args->drain.wait, "Until the worker holds no job");
  c = commands->Add("backup", "Copy the coordinator's state and check the copy",
                    [args](const Context& x) { return Backup(x, args->path); });
  c->add_option("path", args->path,
                "File on the coordinator's machine; by default the next of "
                "its backup folder");
  c = commands->Add("purge", "Forget ended jobs before their time",
                    [args](const Context& x) { return Purge(x, args->purge); });
  c->add_option("--filter", args->purge.filter,
                "Which, for example: state = FAILED")
      ->required();
  c->add_option("--older-than-days", args->purge.older_than_days,
                "Only those that ended so long ago")
      ->check(CLI::PositiveNumber);
  c->add_flag("--force", args->purge.force,
              "Do it; without, only show which would go");
  c->add_flag("--artifacts", args->purge.artifacts,
              "Remove their checkpoints and results, too");
  c->add_option("--reason", args->purge.reason, "Kept in the log");
  c = commands->Add("audit", "Who changed what, newest first",
                    [args](const Context& x) { return Audit(x, args->limit); });
  c->add_option("--limit", args->limit, "At most this many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void AddOtherCommands(CommandArguments* args, Commands* commands) {
  CLI::App* c = commands->Add(
      "inspect", "Structure of a model directory",
      [args](const Context& x) { return Inspect(x, args->inspect); });
  c->add_option("model", args->inspect.path,
                "Model directory, or a config.json")
      ->required();
  c->add_option("--lora-targets", args->inspect.lora_targets,
                "Show what these targets match")
      ->delimiter(',');

  c = commands->Add(
      "export", "Write a model in another form",
      [args](const Context& x) { return Export(x, args->export_args); });
  c->add_flag("--merge", args->merge,
              "Put an adapter into its base: a full checkpoint")
      ->required();
  c->add_option("--base", args->export_args.base, "Model directory")
      ->required();
  c->add_option("--adapter", args->export_args.adapter, "PEFT directory")
      ->required();
  c->add_option("--output", args->export_args.output, "New folder")->required();
  c->add_option("--dtype", args->export_args.dtype,
                "f32, bf16 or same (as the base; quantised ones become bf16)")
      ->check(CLI::IsMember({"f32", "bf16", "same"}))
      ->capture_default_str();
  c->add_flag("--any-base", args->export_args.any_base,
              "Accept a base that is not the one the adapter was trained on");

  CLI::App* dataset =
      commands->app()->add_subcommand("dataset", "Training data");
  dataset->require_subcommand(1);
  dataset->fallthrough();
  c = commands->Add(
      dataset, "check", "Check JSONL files, count their tokens",
      [args](const Context& x) { return DatasetCheck(x, args->check); });
  c->add_option("files", args->check.files, "JSONL files or globs")->required();
  c->add_option("--model", args->check.model,
                "Model directory whose tokenizer counts the tokens");
  c->add_option("--format", args->check.format,
                "auto, chat, prompt_completion or text")
      ->capture_default_str();
  c->add_option("--loss-on", args->check.loss_on,
                "assistant, completion or all")
      ->capture_default_str();
  c->add_option("--too-long", args->check.too_long, "truncate, drop or error")
      ->capture_default_str();
  c->add_option("--max-seq-len", args->check.max_seq_len, "Tokens per row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();

  commands->Add("version", "Version of this program",
                [](const Context& x) { return Version(x); });
}

}  // namespace

CLI::App* Commands::Add(CLI::App* parent, const std::string& name,
                        const std::string& help, RunCommand run) {
  CLI::App* command = parent->add_subcommand(name, help);
  // Global options may also stand behind the command.
  command->fallthrough();
  // A parent's callback comes after its subcommand's.
  command->callback([this, command, run = std::move(run)] {
    if (command->get_subcommands().empty()) chosen_ = run;
  });
  return command;
}

CLI::App* Commands::Add(const std::string& name, const std::string& help,
                        RunCommand run) {
  return Add(app_, name, help, std::move(run));
}

void AddCommands(CommandArguments* args, Commands* commands) {
  AddJobCommands(args, commands);
  AddListCommands(args, commands);
  AddOperatorCommands(args, commands);
  AddOtherCommands(args, commands);
}

}  // namespace cadre::client
