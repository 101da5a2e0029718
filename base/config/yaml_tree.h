#ifndef CADRE_BASE_CONFIG_YAML_TREE_H_
#define CADRE_BASE_CONFIG_YAML_TREE_H_

// A YAML document as a plain tree with marks; the strict part of the syntax
// (no anchors, aliases, tags, tabs, second document) is enforced here.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/config/yaml_proto.h"

namespace cadre::yaml {

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  YamlMark mark;
  std::string scalar;
  bool quoted = false;
  std::vector<Node> items;  // kList
  struct Entry;
  std::vector<Entry> entries;  // kMap
};

// Apart: Clang lets no std::pair of a Node be a part of it.
struct Node::Entry {
  Node key, value;
};

struct SyntaxError {
  YamlMark mark;
  std::string message;
};

// The tree of the only document in `text`; problems are appended to `errors`
// (the tree is then as complete as it could be read).
Node Read(absl::string_view text, std::vector<SyntaxError>* errors);

}  // namespace cadre::yaml

#endif  // CADRE_BASE_CONFIG_YAML_TREE_H_
