#include "client/cli.h"

#include <CLI/CLI.hpp>
#include <string>

#include "absl/time/time.h"
#include "base/version.h"
#include "client/command_table.h"
#include "client/context.h"
#include "client/exit_codes.h"

namespace cadre::client {
namespace {

constexpr char kDefaultAddress[] = "127.0.0.1:8470";

struct Globals {
  std::string address = kDefaultAddress;
  std::string ca_file, certificate_file, key_file, token_file;
  double timeout_seconds = 10;
  bool json = false, no_color = false, quiet = false;
};

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--address", globals->address, "Coordinator, host:port")
      ->envname("CADRE_ADDRESS")
      ->capture_default_str();
  app->add_option("--ca", globals->ca_file,
                  "Certificate of the coordinator's authority (PEM); without "
                  "it plaintext, to loopback only")
      ->envname("CADRE_CA");
  app->add_option("--cert", globals->certificate_file, "Your certificate (PEM)")
      ->envname("CADRE_CERT");
  app->add_option("--key", globals->key_file, "Its private key (PEM)")
      ->envname("CADRE_KEY");
  app->add_option("--token-file", globals->token_file,
                  "File with your token; never the token itself")
      ->envname("CADRE_TOKEN_FILE");
  app->add_option("--timeout", globals->timeout_seconds,
                  "Seconds to wait for an answer")
      ->envname("CADRE_TIMEOUT")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_flag("--json", globals->json,
                "Protobuf JSON on stdout, one object a line");
  app->add_flag("--no-color", globals->no_color, "No colours");
  app->add_flag("--quiet", globals->quiet, "No progress, no hints");
}

}  // namespace

int RunCli(int argc, char** argv) {
  CLI::App app("Cadre: fine-tuning of sparse mixture-of-experts models.",
               "cadre");
  app.require_subcommand(1);
  app.set_version_flag("--version", kVersion);
  Globals globals;
  AddGlobals(&app, &globals);
  Commands commands(&app);
  CommandArguments arguments;
  AddCommands(&arguments, &commands);
  app.footer(
      "Exit codes: 0 ok, 1 job failed, 2 usage, 3 not found, 4 job file or "
      "data invalid,\n5 auth, 6 conflict, 7 quota, 8 unavailable, 9 job "
      "cancelled, 10 internal.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  Context context;
  context.address = globals.address;
  context.ca_file = globals.ca_file;
  context.certificate_file = globals.certificate_file;
  context.key_file = globals.key_file;
  context.token_file = globals.token_file;
  context.timeout = absl::Seconds(globals.timeout_seconds);
  context.json = globals.json;
  context.quiet = globals.quiet;
  context.terminal = Terminal::Detect(globals.no_color);
  return commands.chosen()(context);
}

}  // namespace cadre::client
