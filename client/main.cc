// cadre: submits fine-tuning jobs and watches them.

#include "client/cli.h"

int main(int argc, char** argv) { return cadre::client::RunCli(argc, argv); }
