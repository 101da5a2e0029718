#ifndef CADRE_COORDINATOR_TEXT_DATA_CHECK_H_
#define CADRE_COORDINATOR_TEXT_DATA_CHECK_H_

// The data check in use: base/text/dataset_check with the model's tokenizer and
// chat template, the same code that the workers read the data with.

#include <memory>

#include "coordinator/data_check.h"

namespace cadre::coordinator {

std::unique_ptr<DataChecker> MakeTextDataChecker();

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_TEXT_DATA_CHECK_H_
