#ifndef CADRE_CLIENT_CLI_H_
#define CADRE_CLIENT_CLI_H_

namespace cadre::client {

// Parses the command line, runs the command, returns the exit code
// (exit_codes.h).
int RunCli(int argc, char** argv);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_CLI_H_
