#ifndef CADRE_CLIENT_COMMANDS_COMMANDS_H_
#define CADRE_CLIENT_COMMANDS_COMMANDS_H_

// One function per command of `cadre`; each returns the exit code
// (exit_codes.h). Arguments are filled by client/command_table.cc.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/context.h"

namespace cadre::client {

struct SubmitArgs {
  std::string file;
  bool wait = false;
  std::string request_id;        // empty: a fresh one
  std::vector<std::string> set;  // "training.max_steps=5"
};
int Submit(const Context& context, const SubmitArgs& args);

struct ValidateArgs {
  std::string file;
  std::vector<std::string> set;
  bool local = false;  // without a coordinator
};
int Validate(const Context& context, const ValidateArgs& args);

struct PlanArgs {
  std::string file;
  std::vector<std::string> set;
  int workers = 0;             // 0: the registered ones
  uint64_t device_memory = 0;  // bytes; 0: unknown
  int link_domain = 0;
  int candidates = 5;
  bool sample = false;
};
int PlanFile(const Context& context, const PlanArgs& args);

struct ListArgs {
  std::string filter, order_by;
  bool all = false;  // terminal jobs too
  int limit = 100;
};
int List(const Context& context, const ListArgs& args);

int Get(const Context& context, const std::string& job);
int Watch(const Context& context, const std::string& job);
int Events(const Context& context, const std::string& job);
int Cancel(const Context& context, const std::string& job,
           const std::string& reason);
int Pause(const Context& context, const std::string& job,
          const std::string& reason);
struct ResumeArgs {
  std::string job, reason;
  std::optional<int> priority;
};
int Resume(const Context& context, const ResumeArgs& args);
int Delete(const Context& context, const std::string& job,
           const std::string& reason, bool purge_artifacts);
struct PurgeArgs {
  std::string filter, reason;
  int older_than_days = 0;  // 0: any age
  bool force = false;
  bool artifacts = false;
};
int Purge(const Context& context, const PurgeArgs& args);
int Plan(const Context& context, const std::string& job);
int Checkpoints(const Context& context, const std::string& job);
int Artifacts(const Context& context, const std::string& job);
struct DownloadArgs {
  std::string job;
  std::string artifact;  // empty: the job's first result
  int64_t checkpoint = -1;
  std::string dir = ".";
  bool path_only = false;
};
int Download(const Context& context, const DownloadArgs& args);

struct SeriesArgs {
  std::string job;
  std::vector<std::string> names;  // empty: all
  int64_t from = 0, to = 0;        // steps; 0: no limit
  int max_points = 0;              // 0: the server's default
};
int Series(const Context& context, const SeriesArgs& args);

struct ExpertsArgs {
  std::string job;
  bool cumulative = false;
  std::vector<int> layers;  // empty: all
  bool slots = false;       // the placement, too
};
int Experts(const Context& context, const ExpertsArgs& args);
struct RebalanceArgs {
  std::string job;
  bool wait = false;  // until the placement is in force
};
int Rebalance(const Context& context, const RebalanceArgs& args);

int Workers(const Context& context, const std::string& filter);
int Cordon(const Context& context, const std::string& worker,
           const std::string& reason);
int Uncordon(const Context& context, const std::string& worker,
             const std::string& reason);
struct DrainArgs {
  std::string worker, reason;
  bool at_checkpoint = false;
  double deadline_seconds = 0;  // 0: the coordinator's
  bool wait = false;            // until it holds no job
};
int Drain(const Context& context, const DrainArgs& args);
int Backup(const Context& context, const std::string& path);
int Audit(const Context& context, int limit);

struct InspectArgs {
  std::string path;  // model directory or config.json
  std::vector<std::string> lora_targets;
};
int Inspect(const Context& context, const InspectArgs& args);

struct ExportArgs {
  std::string base, adapter;  // folders
  std::string output;         // new folder
  std::string dtype = "same";
  bool any_base = false;
};
int Export(const Context& context, const ExportArgs& args);

struct DatasetCheckArgs {
  std::vector<std::string> files;
  std::string model;  // directory with tokenizer.json
  std::string format = "auto";
  std::string loss_on = "assistant";
  std::string too_long = "truncate";
  int64_t max_seq_len = 4096;
};
int DatasetCheck(const Context& context, const DatasetCheckArgs& args);

int Version(const Context& context);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_COMMANDS_COMMANDS_H_
