#include "model/inspect.h"

#include "client/commands/commands.h"
#include "client/exit_codes.h"

namespace cadre::client {

int Inspect(const Context& context, const InspectArgs& args) {
  auto report = InspectModel(args.path, {.lora_targets = args.lora_targets});
  if (!report.ok()) return context.Fail(report.status());
  context.Print(context.json ? RenderInspectJson(*report) + "\n"
                             : RenderInspectText(*report));
  return kOk;
}

}  // namespace cadre::client
