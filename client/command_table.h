#ifndef CADRE_CLIENT_COMMAND_TABLE_H_
#define CADRE_CLIENT_COMMAND_TABLE_H_

// Every command of the program with its options. Registering them points CLI11
// at a CommandArguments, which parsing fills; the command chosen is run with
// it. Not thread-safe.

#include <functional>
#include <string>

#include "client/commands/commands.h"

namespace CLI {
class App;
}  // namespace CLI

namespace cadre::client {

// What a command runs; its result is the exit code.
using RunCommand = std::function<int(const Context&)>;

class Commands {
 public:
  // Does not own `app`, which must outlive it; so must this the parsing.
  explicit Commands(CLI::App* app) : app_(app) {}
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  CLI::App* Add(CLI::App* parent, const std::string& name,
                const std::string& help, RunCommand run);
  CLI::App* Add(const std::string& name, const std::string& help,
                RunCommand run);

  CLI::App* app() const { return app_; }
  // Behind a successful parse.
  const RunCommand& chosen() const { return chosen_; }

 private:
  CLI::App* const app_;
  RunCommand chosen_;
};

// What the command line fills; lives until the command has run.
struct CommandArguments {
  SubmitArgs submit;
  ValidateArgs validate;
  PlanArgs plan;
  ListArgs list;
  std::string job, reason, worker, filter, path;
  int limit = 100;
  ResumeArgs resume;
  bool purge_artifacts = false;
  PurgeArgs purge;
  DownloadArgs download;
  SeriesArgs series;
  ExpertsArgs experts;
  RebalanceArgs rebalance;
  DrainArgs drain;
  InspectArgs inspect;
  ExportArgs export_args;
  bool merge = false;
  DatasetCheckArgs check;
};

// `args` must outlive the run of the command chosen.
void AddCommands(CommandArguments* args, Commands* commands);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_COMMAND_TABLE_H_
