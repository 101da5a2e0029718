#ifndef CADRE_BASE_VERSION_H_
#define CADRE_BASE_VERSION_H_

namespace cadre {

// Of the programs and of the adapters they write. See CHANGELOG.md.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace cadre

#endif  // CADRE_BASE_VERSION_H_
